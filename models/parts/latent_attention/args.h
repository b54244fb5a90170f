// LatentArgs: the widths of multi-head latent attention (models/parts/latent_attention/latent_attention.h).
#pragma once

#include <cstdint>

#include "models/args/dimension_checks.h"
#include "models/parts/attention/args.h"

namespace hyperion::models {

struct LatentArgs {
  int64_t kv_lora_rank = 0;  // width of the latent of keys and values; 0: plain attention
  int64_t q_lora_rank = 0;   // width of the latent of queries; 0: they have none
  int64_t qk_nope_head_dim = 0,
          qk_rope_head_dim = 0;  // elements of a head's queries and keys: plain, rotated
  int64_t v_head_dim = 0;

  constexpr bool is_present() const { return kv_lora_rank > 0; }
  constexpr int64_t head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

void check(const LatentArgs& latent, const AttentionArgs& attention, DimensionChecks& checks);

}  // namespace hyperion::models
