#include "trainer/optim/exchange_layout.h"

#include <numeric>

namespace hyperion::optim {
namespace {

// Collects the segments of one direction of a stage.
struct SegmentList {
  std::vector<int64_t>& counts;
  std::vector<Segment>& segments;
  int64_t filled = 0;

  void start_rank() { counts.push_back(0); }
  void add(Segment segment) {
    if (segment.count == 0) return;
    segment.begin = filled;
    filled += segment.count;
    counts.back() += segment.count;
    segments.push_back(segment);
  }
};

}  // namespace

int64_t StageLayout::elements_sent() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0});
}

int64_t StageLayout::elements_received() const {
  return std::accumulate(received.begin(), received.end(), int64_t{0});
}

int64_t ExchangeLayout::buffer_elements(const ExchangeRank& rank) const {
  return shards.elements_sent() + (rank.shards > 1 ? shards.elements_received() : 0) + parts.elements_sent() +
         (rank.tensors > 1 ? parts.elements_received() : 0);
}

const MatrixPart& part_of_rank(const Matrix& matrix, int tensor_rank) {
  return matrix.parts[matrix.parts.size() == 1 ? 0 : static_cast<size_t>(tensor_rank)];
}

ExchangeLayout exchange_layout(const std::vector<Matrix>& matrices, const ExchangeRank& rank,
                               const std::function<Range(size_t, int)>& elements_of) {
  ExchangeLayout layout;
  // Stage 1: what shard rank `holder` has of a tensor parallel part goes to the owner's shard rank.
  const auto held = [&](size_t i, int holder) {
    const Range elements = elements_of(matrices[i].parameter, holder);
    const Range both = common(part_of_rank(matrices[i], rank.tensor).elements(), elements);
    return Segment{.matrix = i, .count = both.count, .source = {both.begin - elements.begin, both.count}};
  };
  SegmentList out{layout.shards.sent, layout.shards.out}, in{layout.shards.received, layout.shards.in};
  for (int other = 0; other < rank.shards; ++other) {
    out.start_rank();
    in.start_rank();
    for (size_t i = 0; i < matrices.size(); ++i) {
      if (matrices[i].shard_owner == other) out.add(held(i, rank.shard));
      if (matrices[i].shard_owner == rank.shard) in.add(held(i, other));
    }
  }
  // Stage 2: the parts go to the owner's tensor parallel rank.
  SegmentList parts_out{layout.parts.sent, layout.parts.out},
      parts_in{layout.parts.received, layout.parts.in};
  for (int other = 0; other < rank.tensors; ++other) {
    parts_out.start_rank();
    parts_in.start_rank();
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& matrix = matrices[i];
      if (matrix.shard_owner != rank.shard) continue;
      // Each tensor parallel rank keeps its own where all have the matrix.
      const int owner = matrix.parts.size() == 1 ? rank.tensor : matrix.tensor_owner;
      if (owner == other) parts_out.add({.matrix = i, .count = part_of_rank(matrix, rank.tensor).numel()});
      if (owner == rank.tensor && (matrix.parts.size() > 1 || other == rank.tensor))
        parts_in.add({.matrix = i, .count = part_of_rank(matrix, other).numel()});
    }
  }
  return layout;
}

}  // namespace hyperion::optim
