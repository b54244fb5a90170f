#include "trainer/optim/matrix_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "trainer/optim/newton_schulz.h"

namespace hyperion::optim {

Range common(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end(), b.end());
  return {begin, std::max<int64_t>(0, end - begin)};
}

std::vector<Matrix> matrices_of(const LayerShard& parameter, size_t index, int tensor_ranks) {
  const bool experts = parameter.domain == Domain::kExpert, stack = parameter.shape.size() == 3;
  if (parameter.shape.size() != 2 && !stack)
    throw_bug("{} has {} dimensions: it is no matrix", parameter.fqn, parameter.shape.size());
  const size_t tensor_cut = experts ? 1 : 0;
  const bool divided = parameter.cuts.size() > tensor_cut;
  // The boxes of the tensor parallel ranks.
  std::vector<Box> boxes;
  for (int rank = 0; rank < (divided ? tensor_ranks : 1); ++rank) {
    std::vector<Cut> cuts = parameter.cuts;
    if (divided) cuts[tensor_cut].index = rank;
    boxes.push_back(box_of(parameter.shape, cuts));
  }
  const int64_t count = stack ? parameter.shape[0] : parameter.matrices;
  const int64_t rows = stack ? parameter.shape[1] : parameter.shape[0] / count,
                columns = parameter.shape.back();
  std::vector<Matrix> matrices;
  for (int64_t i = 0; i < count; ++i) {
    Matrix matrix{.parameter = index, .rows = rows, .columns = columns};
    int64_t elements = 0;
    for (const Box& box : boxes) {
      const Range box_columns{box.offset.back(), box.shape.back()};
      MatrixPart part{.columns = box_columns};
      if (stack) {
        const Range held = common({i, 1}, {box.offset[0], box.shape[0]});
        part.rows = {box.offset[1], held.count * box.shape[1]};
        part.offset = (held.begin - box.offset[0]) * box.shape[1] * box.shape[2];
      } else {
        const Range held = common({i * rows, rows}, {box.offset[0], box.shape[0]});
        part.rows = {held.begin - i * rows, held.count};
        part.offset = (held.begin - box.offset[0]) * box.shape[1];
      }
      if (part.numel() == 0) part = {};
      elements += part.numel();
      matrix.parts.push_back(part);
    }
    if (elements > 0) matrices.push_back(std::move(matrix));  // else it is another expert parallel rank's
  }
  return matrices;
}

void choose_owners(std::vector<Matrix>& matrices, int shard_ranks, int64_t steps) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto flops = [&](size_t i) {
    return newton_schulz_flops(matrices[i].rows, matrices[i].columns, steps);
  };
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return flops(a) > flops(b); });
  size_t tensor_ranks = 1;
  for (const Matrix& matrix : matrices) tensor_ranks = std::max(tensor_ranks, matrix.parts.size());
  std::vector<double> loads(static_cast<size_t>(shard_ranks) * tensor_ranks);  // [shard rank][tensor rank]
  for (const size_t i : order) {
    Matrix& matrix = matrices[i];
    if (matrix.parts.size() == 1 && tensor_ranks > 1) {  // each tensor parallel rank computes it
      std::vector<double> heaviest(static_cast<size_t>(shard_ranks));
      for (size_t rank = 0; rank < loads.size(); ++rank)
        heaviest[rank / tensor_ranks] = std::max(heaviest[rank / tensor_ranks], loads[rank]);
      matrix.shard_owner = static_cast<int>(std::ranges::min_element(heaviest) - heaviest.begin());
      for (size_t t = 0; t < tensor_ranks; ++t)
        loads[static_cast<size_t>(matrix.shard_owner) * tensor_ranks + t] += flops(i);
      continue;
    }
    // A rank that has the whole matrix among the tensor parallel ones owns it: nothing goes between them.
    const int64_t numel = matrix.rows * matrix.columns;
    const auto whole =
        std::ranges::find_if(matrix.parts, [&](const MatrixPart& part) { return part.numel() == numel; });
    size_t best = loads.size();
    for (size_t rank = 0; rank < loads.size(); ++rank) {
      if (whole != matrix.parts.end() &&
          rank % tensor_ranks != static_cast<size_t>(whole - matrix.parts.begin()))
        continue;
      if (best == loads.size() || loads[rank] < loads[best]) best = rank;
    }
    matrix.shard_owner = static_cast<int>(best / tensor_ranks);
    matrix.tensor_owner = static_cast<int>(best % tensor_ranks);
    loads[best] += flops(i);
  }
}

std::vector<double> loads_of_owners(const std::vector<Matrix>& matrices, int shard_ranks, int tensor_ranks,
                                    int64_t steps) {
  std::vector<double> loads(static_cast<size_t>(shard_ranks) * static_cast<size_t>(tensor_ranks));
  for (const Matrix& matrix : matrices) {
    const double flops = newton_schulz_flops(matrix.rows, matrix.columns, steps);
    const auto first = static_cast<size_t>(matrix.shard_owner) * static_cast<size_t>(tensor_ranks);
    for (int rank = 0; rank < tensor_ranks; ++rank)
      if (matrix.parts.size() == 1 || matrix.tensor_owner == rank)
        loads[first + static_cast<size_t>(rank)] += flops;
  }
  return loads;
}

std::vector<std::vector<Matrix>> deal_into_exchanges(std::vector<Matrix> matrices) {
  constexpr int64_t kMaxExchanges = 4;
  std::map<std::pair<int, int>, int64_t> of_owner;
  for (const Matrix& matrix : matrices) ++of_owner[{matrix.shard_owner, matrix.tensor_owner}];
  int64_t largest = 0;
  for (const auto& [owner, count] : of_owner) largest = std::max(largest, count);
  std::vector<std::vector<Matrix>> exchanges(static_cast<size_t>(std::min(kMaxExchanges, largest)));
  std::map<std::pair<int, int>, int64_t> seen;
  for (Matrix& matrix : matrices) {
    const std::pair owner(matrix.shard_owner, matrix.tensor_owner);
    const auto index = seen[owner]++ * static_cast<int64_t>(exchanges.size()) / of_owner[owner];
    exchanges[static_cast<size_t>(index)].push_back(std::move(matrix));
  }
  return exchanges;
}

}  // namespace hyperion::optim
