// Conversions between the layout in which context parallel ranks exchange keys and values and the layout that
// attention reads.
//
// Chunks [parts, ranks, 2, batch, tokens, kv_heads, head_dim] have the keys and values of each rank's parts
// (models/args/sequence_parts.h). Part 0 of all ranks, from the first rank to the last, is the beginning of
// the sequence; part 1 follows from the last rank to the first, and so on alternately. k, v [batch, kv_heads,
// length, head_dim] and keys [2, batch, length, kv_heads, head_dim] are the first `length` tokens of the
// sequence, a number of complete chunks. They have one dtype; chunks have the same, or fp32 (fp64). The
// elements of a head are contiguous.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// Copies (pack_keys) or adds (add_keys) k and v to the chunks. Of chunks beyond `length` pack_keys makes
// zeros, and add_keys leaves them.
using PackKeys = void(const at::Tensor& chunks, const at::Tensor& k, const at::Tensor& v);
// Copies chunks, which are those of parts from first_part on, to `keys`, as far as `keys` has their tokens.
// Other tokens of `keys` stay.
using UnpackKeys = void(const at::Tensor& keys, const at::Tensor& chunks, int64_t first_part);

// Checks the tensors for the forms that use strides. all_of_keys: whether the chunks must have all tokens of
// k and v.
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
