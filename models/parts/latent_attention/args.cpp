#include "models/parts/latent_attention/args.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace hyperion::models {

void check(const LatentArgs& latent, const AttentionArgs& attention, DimensionChecks& checks) {
  for (const auto& [key, width] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"kv_lora_rank", latent.kv_lora_rank},
                                                              {"q_lora_rank", latent.q_lora_rank},
                                                              {"qk_nope_head_dim", latent.qk_nope_head_dim},
                                                              {"qk_rope_head_dim", latent.qk_rope_head_dim},
                                                              {"v_head_dim", latent.v_head_dim}})
    checks.in_range({key}, width, 0, kLargestDimension);
  if (!latent.is_present()) return;
  checks.positive({"qk_nope_head_dim"}, latent.qk_nope_head_dim);
  checks.positive({"qk_rope_head_dim"}, latent.qk_rope_head_dim);
  checks.refuse_if(latent.v_head_dim < 1 || latent.v_head_dim > attention.head_dim, {"v_head_dim"},
                   fmt::format("v_head_dim is {}, expected a value from 1 to the {} elements of a key",
                               latent.v_head_dim, attention.head_dim));
  checks.refuse_if(latent.qk_rope_head_dim % 2 != 0, {"qk_rope_head_dim"},
                   fmt::format("qk_rope_head_dim is {}, expected an even number (RoPE rotates pairs)",
                               latent.qk_rope_head_dim));
  checks.refuse_if(attention.n_kv_heads != attention.n_heads, {"n_kv_heads", "n_heads"},
                   fmt::format("n_kv_heads is {}, expected n_heads = {}: latent attention has as many",
                               attention.n_kv_heads, attention.n_heads));
}

}  // namespace hyperion::models
