// Calls key_chunks/cuda.cuh with tensors.
#pragma once

#include "models/kernels/common/tensors.h"
#include "models/kernels/key_chunks/key_chunks.h"
#include "models/kernels/key_chunks/task.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
void move_keys(const Launch& launch, KeyMove move, const Tensor& chunks, const Tensor& k, const Tensor& v,
               int64_t first_part) {
  require_key_chunks(chunks, k, v, /*all_of_keys=*/move != KeyMove::kUnpack);
  const auto of_keys = [](const Tensor& t) {  // [batch, heads, length, head_dim]
    return HeadsLayout{
        .data = t.data_ptr(), .sequence = t.stride(0), .position = t.stride(2), .head = t.stride(1)};
  };
  const KeyChunksTask task{.move = move,
                           .k = of_keys(k),
                           .v = of_keys(v),
                           .chunks = {.data = chunks.data_ptr(),
                                      .part = chunks.stride(0),
                                      .sequence = chunks.stride(3),
                                      .position = chunks.stride(4),
                                      .head = chunks.stride(5)},
                           .next_rank = chunks.stride(1),
                           .values = chunks.stride(2),
                           .wide = chunks.scalar_type() == at::kFloat,
                           .parts = chunks.size(0),
                           .ranks = chunks.size(1),
                           .batch = chunks.size(3),
                           .tokens = chunks.size(4),
                           .heads = static_cast<int>(chunks.size(5)),
                           .head_dim = static_cast<int>(chunks.size(6)),
                           .first_part = first_part,
                           .length = k.size(2)};
  if (chunks.numel() > 0) launch(task, element_of(k, "chunks of keys and values"));
}

template <typename Launch>
void pack_keys(const Launch& launch, const Tensor& chunks, const Tensor& k, const Tensor& v) {
  move_keys(launch, KeyMove::kPack, chunks, k, v, 0);
}

template <typename Launch>
void add_keys(const Launch& launch, const Tensor& chunks, const Tensor& k, const Tensor& v) {
  move_keys(launch, KeyMove::kAdd, chunks, k, v, 0);
}

// keys [2, batch, length, heads, head_dim]
template <typename Launch>
void unpack_keys(const Launch& launch, const Tensor& keys, const Tensor& chunks, int64_t first_part) {
  move_keys(launch, KeyMove::kUnpack, chunks, keys.select(0, 0).transpose(1, 2),
            keys.select(0, 1).transpose(1, 2), first_part);
}

}  // namespace hyperion::kernels::cuda
