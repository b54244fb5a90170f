#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>

#include "models/kernels/key_chunks/key_chunks.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

// Between the order of the ranks and that of the sequence.
Tensor in_other_order(const Tensor& chunks, int64_t part) {
  return part % 2 == 0 || chunks.size(0) == 1 ? chunks : chunks.flip(0);
}

// The chunks of a part, [ranks, 2, batch, tokens, ...], by whether they are among the first `length` tokens.
std::pair<Tensor, Tensor> divided_at(int64_t length, const Tensor& of_part, int64_t part) {
  const int64_t ranks = of_part.size(0), tokens = of_part.size(3),
                before = std::clamp<int64_t>(length / tokens - part * ranks, 0, ranks),
                after = ranks - before;
  if (part % 2 == 0) return {of_part.narrow(0, 0, before), of_part.narrow(0, before, after)};
  return {of_part.narrow(0, after, before), of_part.narrow(0, 0, after)};
}

// Chunks of a part of the sequence, whose tokens are dimension 2, in its order: they become dimension 2.
Tensor chunks_of(const Tensor& keys, const Tensor& of_part, int64_t part, int64_t count) {
  const int64_t ranks = of_part.size(0), tokens = of_part.size(3);
  return keys.narrow(2, part * ranks * tokens, count * tokens).unflatten(2, {count, tokens});
}

// write(to, from): [chunks, batch, tokens, kv_heads, head_dim] of keys, and of values.
template <typename Write>
void write_into(const Tensor& chunks, const Tensor& k, const Tensor& v, bool zeros, const Write& write) {
  for (int64_t part = 0; part < chunks.size(0); ++part) {
    const Tensor of_part = chunks.select(0, part);
    const auto [to, others] = divided_at(k.size(2), of_part, part);
    if (zeros && others.numel() > 0) others.zero_();
    if (to.numel() == 0) continue;
    for (const auto& [which, given] : {std::pair(0, k), {1, v}})
      write(to.select(1, which),
            in_other_order(chunks_of(given, of_part, part, to.size(0)).permute({2, 0, 3, 1, 4}), part));
  }
}

}  // namespace

void pack_keys(const Tensor& chunks, const Tensor& k, const Tensor& v) {
  write_into(chunks, k, v, /*zeros=*/true, [](const Tensor& to, const Tensor& from) { to.copy_(from); });
}

void add_keys(const Tensor& chunks, const Tensor& k, const Tensor& v) {
  write_into(chunks, k, v, /*zeros=*/false, [](const Tensor& to, const Tensor& from) { to.add_(from); });
}

void unpack_keys(const Tensor& keys, const Tensor& chunks, int64_t first_part) {
  for (int64_t i = 0; i < chunks.size(0); ++i) {
    const int64_t part = first_part + i;
    const Tensor of_part = chunks.select(0, i);
    const Tensor from = divided_at(keys.size(2), of_part, part).first;
    if (from.numel() == 0) continue;
    chunks_of(keys, of_part, part, from.size(0))
        .copy_(in_other_order(from, part).permute({1, 2, 0, 3, 4, 5}));
  }
}

}  // namespace hyperion::kernels::plain
