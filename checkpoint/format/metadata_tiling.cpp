#include "checkpoint/format/metadata_tiling.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"

namespace hyperion::checkpoint {
namespace {

std::string describe_chunk(const Chunk& chunk) {
  return fmt::format("at [{}] of shape [{}]", fmt::join(chunk.offset, ", "), fmt::join(chunk.shape, ", "));
}

void check_inside(const std::string& who, const Chunk& chunk, const Dims& shape) {
  if (chunk.offset.size() != shape.size() || chunk.shape.size() != shape.size())
    throw_data("{}: the chunk {} has another rank than the tensor, whose shape is [{}]", who,
               describe_chunk(chunk), fmt::join(shape, ", "));
  for (size_t dim = 0; dim < shape.size(); ++dim)
    if (chunk.offset[dim] < 0 || chunk.shape[dim] < 0 || chunk.offset[dim] > shape[dim] ||
        chunk.shape[dim] > shape[dim] - chunk.offset[dim])
      throw_data("{}: the chunk {} is not inside the tensor, whose shape is [{}]", who, describe_chunk(chunk),
                 fmt::join(shape, ", "));
}

// Finds overlaps by separating the chunks, dimension by dimension, into groups whose intervals do not
// touch; chunks in different groups cannot overlap. Groups that no dimension separates are compared
// pairwise.
class OverlapSearch {
 public:
  OverlapSearch(const std::string& who, size_t rank, size_t chunks)
      : who_(who), rank_(rank), budget_(1'000'000 + 64 * chunks) {}

  void search(std::span<const Chunk*> group, size_t first_dim) {
    if (group.size() < 2) return;
    for (size_t turn = 0; turn < rank_; ++turn)
      if (separate(group, (first_dim + turn) % rank_)) return;
    compare_pairs(group);
  }

 private:
  void spend(size_t work) {
    if (work > budget_) throw_data("{}: its chunks lie too irregularly to be checked", who_);
    budget_ -= work;
  }
  // Returns false if the chunks' intervals along `dim` form one connected group.
  bool separate(std::span<const Chunk*> group, size_t dim) {
    spend(group.size());
    const auto begin = [&](const Chunk* chunk) { return chunk->offset[dim]; };
    std::ranges::sort(group, {}, begin);
    size_t first = 0;
    int64_t end = begin(group[0]);
    for (size_t i = 0; i < group.size(); ++i) {
      if (begin(group[i]) >= end) {
        search(group.subspan(first, i - first), (dim + 1) % rank_);
        first = i;
      }
      end = std::max(end, begin(group[i]) + group[i]->shape[dim]);
    }
    if (first > 0) search(group.subspan(first), (dim + 1) % rank_);
    return first > 0;
  }
  void compare_pairs(std::span<const Chunk*> group) {
    for (size_t i = 0; i < group.size(); ++i) {
      spend(i);
      for (size_t j = 0; j < i; ++j)
        if (overlap(*group[i], *group[j]))
          throw_data("{}: the chunks {} and {} overlap", who_, describe_chunk(*group[j]),
                     describe_chunk(*group[i]));
    }
  }
  bool overlap(const Chunk& a, const Chunk& b) const {
    for (size_t dim = 0; dim < rank_; ++dim)
      if (a.offset[dim] >= b.offset[dim] + b.shape[dim] || b.offset[dim] >= a.offset[dim] + a.shape[dim])
        return false;
    return true;
  }

  const std::string& who_;
  size_t rank_, budget_;
};

}  // namespace

std::optional<int64_t> element_count(const Dims& shape) {
  int64_t count = 1;
  if (std::ranges::any_of(shape, [](int64_t extent) { return extent < 0; })) return std::nullopt;
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  return count;
}

Dims row_major_strides(const Dims& shape) {
  Dims strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;)
    if (__builtin_mul_overflow(strides[dim], std::max<int64_t>(shape[dim], 1), &strides[dim - 1]))
      throw_bug("a tensor of shape [{}] has impossible strides", fmt::join(shape, ", "));
  return strides;
}

void check_tiling(const std::string& who, const TensorRecord& tensor) {
  const std::optional<int64_t> elements = element_count(tensor.shape);
  int64_t bytes = 0;
  if (!elements || __builtin_mul_overflow(*elements, static_cast<int64_t>(size_of(tensor.dtype)), &bytes))
    throw_data("{}: the shape [{}] is of no possible tensor", who, fmt::join(tensor.shape, ", "));
  std::vector<const Chunk*> filled;
  for (const Chunk& chunk : tensor.chunks) {
    check_inside(who, chunk, tensor.shape);
    if (std::ranges::find(chunk.shape, 0) == chunk.shape.end()) filled.push_back(&chunk);
  }
  OverlapSearch(who, tensor.shape.size(), filled.size()).search(filled, 0);
  int64_t covered = 0;  // cannot exceed the tensor's elements: chunks are inside and do not overlap
  for (const Chunk* chunk : filled) covered += *element_count(chunk->shape);
  if (covered != *elements)
    throw_data("{}: its {} chunks hold {} of its {} elements; a part of the tensor is missing", who,
               tensor.chunks.size(), covered, *elements);
}

}  // namespace hyperion::checkpoint
