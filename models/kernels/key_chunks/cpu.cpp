#include <algorithm>
#include <array>
#include <type_traits>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/key_chunks/key_chunks.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kTokensOfThread = 8;  // at least

template <typename From, typename To>
void put_elements(const From* from, To* to, int64_t n) {
  if constexpr (std::is_same_v<From, To>)
    std::copy_n(from, n, to);
  else if constexpr (std::is_same_v<To, float>)
    rows::widen(from, to, n);
  else
    rows::narrow(from, to, n);
}

template <typename Key, typename Chunk>
void move_tokens(const Tensor& chunks, const Tensor& k, const Tensor& v, int64_t first_part, bool unpack) {
  const int64_t parts = chunks.size(0), ranks = chunks.size(1), batch = chunks.size(3),
                tokens = chunks.size(4), head_dim = chunks.size(6);
  // The elements of a token that are contiguous in all tensors.
  const bool heads_together =
      chunks.stride(5) == head_dim && k.stride(1) == head_dim && v.stride(1) == head_dim;
  const int64_t rows = heads_together ? 1 : chunks.size(5), n = chunks.size(5) * head_dim / rows;
  const std::array<Key*, 2> of_keys = {k.data_ptr<Key>(), v.data_ptr<Key>()};
  Chunk* const of_chunks = chunks.data_ptr<Chunk>();
  const int64_t reached = std::clamp<int64_t>(k.size(2) / tokens - first_part * ranks, 0, parts * ranks);
  const int64_t moved = unpack ? reached : parts * ranks;
  parallel_for(0, moved * batch * tokens, kTokensOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i % tokens, sequence = i / tokens % batch, chunk = i / tokens / batch,
                    part = chunk / ranks, place = (first_part * ranks + chunk) * tokens + token,
                    rank = (first_part + part) % 2 == 0 ? chunk % ranks : ranks - 1 - chunk % ranks;
      for (size_t which = 0; which < 2; ++which) {
        const Tensor& keys = which == 0 ? k : v;
        Key* const key = of_keys[which] + sequence * keys.stride(0) + place * keys.stride(2);
        Chunk* const to = of_chunks + part * chunks.stride(0) + rank * chunks.stride(1) +
                          static_cast<int64_t>(which) * chunks.stride(2) + sequence * chunks.stride(3) +
                          token * chunks.stride(4);
        for (int64_t row = 0; row < rows; ++row) {
          Key* const of_key = key + row * keys.stride(1);
          Chunk* const of_chunk = to + row * chunks.stride(5);
          if (unpack)
            put_elements(of_chunk, of_key, n);
          else if (chunk < reached)
            put_elements(of_key, of_chunk, n);
          else
            std::fill_n(of_chunk, n, Chunk(0));
        }
      }
    }
  });
}

void move_keys(const Tensor& chunks, const Tensor& k, const Tensor& v, int64_t first_part, bool unpack) {
  require_key_chunks(chunks, k, v, /*all_of_keys=*/!unpack);
  with_element_type(k, [&]<typename T>(T) {
    if (chunks.scalar_type() == k.scalar_type())
      move_tokens<T, T>(chunks, k, v, first_part, unpack);
    else
      move_tokens<T, float>(chunks, k, v, first_part, unpack);
  });
}

}  // namespace

void pack_keys(const Tensor& chunks, const Tensor& k, const Tensor& v) {
  move_keys(chunks, k, v, /*first_part=*/0, /*unpack=*/false);
}

void add_keys(const Tensor& chunks, const Tensor& k, const Tensor& v) {
  plain::add_keys(chunks, k, v);  // as fast
}

void unpack_keys(const Tensor& keys, const Tensor& chunks, int64_t first_part) {
  move_keys(chunks, keys.select(0, 0).transpose(1, 2), keys.select(0, 1).transpose(1, 2), first_part,
            /*unpack=*/true);
}

}  // namespace hyperion::kernels::cpu
