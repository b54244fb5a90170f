// Keys and values as context parallel ranks exchange them, and as attention reads them.
//
// Chunks of sequences, [parts, ranks, 2, batch, tokens, kv_heads, head_dim], have the keys and the values of
// each rank's parts (models/args/sequence_parts.h). In the order of the sequence those of part 0 are the
// ranks' from the first to the last, those of part 1 behind them from the last to the first, and so on by
// turns. k, v [batch, kv_heads, length, head_dim] and keys [2, batch, length, kv_heads, head_dim] are the
// first chunks of the sequence, as many as length is of. They are of one dtype, and chunks of that or of fp32
// (fp64). The elements of a head lie side by side.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// Into chunks of parts from the first on. pack_keys: those that k and v have none of become zeros; add_keys:
// they stay as they are.
using PackKeys = void(const at::Tensor& chunks, const at::Tensor& k, const at::Tensor& v);
// Out of chunks of parts from first_part on, as far as `keys` have their tokens; others stay as they are.
using UnpackKeys = void(const at::Tensor& keys, const at::Tensor& chunks, int64_t first_part);

// For the forms that reach memory by strides. all_of_keys: whether k and v must have no token that is in none
// of the chunks.
inline void require_key_chunks(const at::Tensor& chunks, const at::Tensor& k, const at::Tensor& v,
                               bool all_of_keys) {
  const auto side_by_side = [](const at::Tensor& t) { return t.size(-1) == 1 || t.stride(-1) == 1; };
  TORCH_CHECK(chunks.dim() == 7 && chunks.size(2) == 2 && k.dim() == 4 && v.sizes() == k.sizes() &&
                  k.size(0) == chunks.size(3) && k.size(1) == chunks.size(5) && k.size(3) == chunks.size(6) &&
                  k.size(2) % chunks.size(4) == 0 &&
                  (!all_of_keys || k.size(2) <= chunks.size(0) * chunks.size(1) * chunks.size(4)) &&
                  side_by_side(chunks) && side_by_side(k) && side_by_side(v),
              "chunks of keys and values: ", chunks.sizes(), " of keys ", k.sizes(), " and values ",
              v.sizes());
  TORCH_CHECK(v.scalar_type() == k.scalar_type() &&
                  (chunks.scalar_type() == k.scalar_type() || chunks.scalar_type() == at::kFloat),
              "chunks of keys and values: ", chunks.scalar_type(), " of ", k.scalar_type(), " and ",
              v.scalar_type());
}

namespace plain {
PackKeys pack_keys, add_keys;
UnpackKeys unpack_keys;
}  // namespace plain

namespace cpu {
PackKeys pack_keys, add_keys;
UnpackKeys unpack_keys;
}  // namespace cpu

}  // namespace hyperion::kernels
