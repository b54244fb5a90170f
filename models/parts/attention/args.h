// AttentionArgs: the heads of attention, plain or latent.
#pragma once

#include <cstdint>

namespace hyperion::models {

struct AttentionArgs {
  int64_t n_heads = 16;
  int64_t n_kv_heads = 16;
  int64_t head_dim = 16;     // of queries and keys; with latent attention the sum of LatentArgs' two
  bool qk_norm = false;      // RMSNorm of each query and key head
  bool qkv_bias = false;     // learned biases of wq, wk and wv
  bool output_bias = false;  // a learned bias of wo
  bool sinks = false;        // a learned number per head, one more score of each softmax, whose value is 0
  // The largest number of keys that a query sees in a layer that has_window(): its own and those right before
  // it; 0: all.
  int64_t window = 0;
  int64_t window_first_layer = 0;  // layers before it have no window
  int64_t window_full_every = 0;   // nor has each layer whose number, from 1, is a multiple; 0: none

  bool has_window(int64_t layer) const {
    return window > 0 && layer >= window_first_layer &&
           (window_full_every == 0 || (layer + 1) % window_full_every != 0);
  }
  int64_t window_of(int64_t layer) const { return has_window(layer) ? window : 0; }
};

}  // namespace hyperion::models
