// AttentionArgs: the heads of attention, plain or latent.
#pragma once

#include <cstdint>

namespace hyperion::models {

struct AttentionArgs {
  int64_t n_heads = 16;
  int64_t n_kv_heads = 16;
  int64_t head_dim = 16;  // of queries and keys; with latent attention the sum of LatentArgs' two
  bool qk_norm = false;   // RMSNorm of each query and key head
};

}  // namespace hyperion::models
