#include "trainer/optim/matrix_plan.h"

#include <catch2/catch.hpp>

#include "base/parameter.h"
#include "models/description.h"
#include "models/flavors/registry.h"
#include "trainer/optim/muon.h"
#include "trainer/optim/newton_schulz.h"

namespace hyperion::optim {
namespace {

// The FLOPs of each owner.
std::vector<double> loads_of(const std::vector<Matrix>& matrices, int shard_ranks, size_t tensor_ranks) {
  std::vector<double> loads(static_cast<size_t>(shard_ranks) * tensor_ranks);
  for (const Matrix& matrix : matrices)
    loads[static_cast<size_t>(matrix.shard_owner) * tensor_ranks +
          static_cast<size_t>(matrix.tensor_owner)] += newton_schulz_flops(matrix.rows, matrix.columns, 5);
  return loads;
}

ParameterPtr cut(ParameterPtr parameter, int64_t parts, int64_t index) {
  parameter->shard(parts, index);
  return parameter;
}

}  // namespace

TEST_CASE("tensor parallel ranks have rows or columns of a matrix, or whole heads") {
  const auto rows = matrices_of(*cut(make_parameter("w", {10, 4}, Init::ones(), 0), 4, 1), 7, 4);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].parameter == 7);
  CHECK(rows[0].parts[1].rows == Range{3, 3});
  CHECK(rows[0].parts[3].rows == Range{9, 1});
  CHECK(rows[0].parts[3].elements() == Range{0, 4});
  const auto columns = matrices_of(*cut(make_parameter("w", {10, 4}, Init::ones(), 1), 2, 0), 0, 2);
  CHECK(columns[0].parts[1].columns == Range{2, 2});
  CHECK(columns[0].parts[1].elements() == Range{0, 20});
  ParameterPtr heads = make_parameter("w", {12, 5}, Init::ones(), 0);
  heads->matrices = 4;  // of three rows
  const auto whole = matrices_of(*cut(heads, 2, 0), 0, 2);
  REQUIRE(whole.size() == 4);
  CHECK(whole[3].parts[0].numel() == 0);
  CHECK(whole[3].parts[1].rows == Range{0, 3});
  CHECK(whole[3].parts[1].elements() == Range{15, 15});
}

TEST_CASE("experts are matrices of their own, those of this expert parallel rank alone") {
  ParameterPtr stack = make_parameter("w", {6, 4, 8}, Init::ones(), 1);
  stack->shard_experts(2, 1);
  stack->shard(2, 0);
  const auto matrices = matrices_of(*stack, 0, 2);
  REQUIRE(matrices.size() == 3);
  CHECK(matrices[2].rows == 4);
  CHECK(matrices[2].columns == 8);
  CHECK(matrices[2].parts[1].rows == Range{2, 2});
  CHECK(matrices[2].parts[1].elements() == Range{32, 16});
}

TEST_CASE("no owner has more than the mean and the largest matrix") {
  const auto [name, flavor] =
      GENERATE(std::pair("llama3", "8B"), std::pair("llama3", "70B"), std::pair("qwen3", "30B-A3B"));
  const int ranks = GENERATE(8, 64, 1024);
  const models::ModelDescription model = models::describe_model(models::model_args(name, flavor));
  std::vector<Matrix> matrices;
  size_t index = 0;
  models::for_each_named_parameter(model, [&](const std::string& fqn, const models::ParameterShape& shape) {
    if (!fqn.starts_with("layers.") || shape.dims.size() < 2) return;
    for (Matrix& matrix : matrices_of(*make_parameter(fqn, shape.dims, Init::ones()), index, 1))
      matrices.push_back(std::move(matrix));
    ++index;
  });
  choose_owners(matrices, ranks, 5);
  const std::vector<double> loads = loads_of(matrices, ranks, 1);
  double total = 0, largest = 0, most = 0;
  for (const Matrix& matrix : matrices)
    largest = std::max(largest, newton_schulz_flops(matrix.rows, matrix.columns, 5));
  for (const double load : loads) {
    total += load;
    most = std::max(most, load);
  }
  CAPTURE(name, flavor, ranks, matrices.size(), most / (total / ranks));
  CHECK(most <= std::max(1.1 * total / ranks, largest));
}

TEST_CASE("whole heads stay on the tensor parallel rank that has them") {
  std::vector<Matrix> matrices;
  for (int i = 0; i < 8; ++i)
    matrices.push_back({.rows = 4, .columns = 4, .parts = {{}, {{0, 4}, {0, 4}, 0}}});
  choose_owners(matrices, 4, 5);
  for (const Matrix& matrix : matrices) CHECK(matrix.tensor_owner == 1);
  CHECK(loads_of(matrices, 4, 2)[1] == 2 * newton_schulz_flops(4, 4, 5));
}

TEST_CASE("steps and scales are those of their names") {
  CHECK(newton_schulz_steps(config::MuonCoefficients::kPolarExpress, 7).back() ==
        newton_schulz_steps(config::MuonCoefficients::kPolarExpress, 5).back());
  CHECK(muon_scale(config::MuonScale::kOriginal, 4, 16) == 1);
  CHECK(muon_scale(config::MuonScale::kSpectral, 4, 16) == 0.5);
  CHECK(muon_scale(config::MuonScale::kMatchRmsAdamW, 4, 16) == Approx(0.8));
}

}  // namespace hyperion::optim
