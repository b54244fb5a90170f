// Expert parallelism in which tokens travel once per node: four ranks on a CPU stand for two nodes of two.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>

#include "models/parts/experts/exchange/node_exchange.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using at::Tensor;
using models::KeptRouting;

constexpr MeshConfig kByNode = {.ep = 4, .ep_nodes = 2}, kByExpert = {.ep = 4};

// One exchange there and back, with experts that multiply by a number of their rank.
struct Journey {
  Tensor received;                   // the rows, sorted
  Tensor sum, grad_x, grad_weights;  // fp64
  size_t exchanges = 0;              // to the ranks of the experts
};

struct JourneyInput {
  Tensor x, weights, choices, grad;
  int64_t experts;
  bool before;  // whether rows are multiplied by their weights before the experts
  int64_t slices = 1;
};

double factor_of_rank(int64_t rank) {
  return 0.3 + 0.1 * static_cast<double>(rank);
}

Tensor sorted_rows(const Tensor& rows) {
  std::vector<std::vector<float>> values(static_cast<size_t>(rows.size(0)));
  const Tensor wide = rows.detach().to(at::kFloat).contiguous();
  const auto* value = wide.const_data_ptr<float>();
  for (std::vector<float>& row : values) {
    row.assign(value, value + rows.size(1));
    value += rows.size(1);
  }
  std::ranges::sort(values);
  std::vector<Tensor> sorted = {at::empty({0, rows.size(1)})};
  for (const std::vector<float>& row : values) sorted.push_back(at::tensor(row).unsqueeze(0));
  return at::cat(sorted);
}

Journey journey(const JourneyInput& input, ProcessGroups& groups, bool by_node) {
  const Tensor x = input.x.detach().clone().requires_grad_(), none;
  Tensor weights = input.weights.detach().clone().requires_grad_();
  const models::BlockRun run;
  Exchange& ep = groups.get(MeshDim::kEp);
  Journey made;
  std::vector<Tensor> received = {at::empty({0, x.size(1)}, x.options())};
  const auto there_and_back = [&](const Tensor& tokens, const Tensor& factors, KeptRouting& routing,
                                  std::optional<models::CountsExchange> counts, Exchange& group,
                                  const models::NodeLevel& level) {
    models::DispatchExchange rows(tokens, input.before ? factors : none, routing, std::move(counts), group,
                                  run, level);
    models::CombineExchange results(routing, input.before ? none : factors, group, run, level);
    made.exchanges += routing.exchanges.size();
    for (size_t slice = 0; slice < routing.exchanges.size(); ++slice) {
      received.push_back(rows.wait(slice));
      results.send(received.back() * factor_of_rank(ep.rank()));
    }
    return results.sum(none);
  };
  Tensor sum;
  if (by_node) {
    const models::NodeGroups nodes = {&groups.get(MeshDim::kEpNodes), &groups.get(MeshDim::kEpInNode)};
    models::NodeCounts counts(input.choices, input.experts, at::kFloat, nodes, /*equal=*/false, {},
                              input.slices);
    KeptRouting routing{.dispatch = counts.dispatch()};
    models::NodeDispatchExchange tokens(x, weights, routing, std::move(counts), nodes, run);
    models::CombineExchange results(routing, none, *nodes.nodes, run, tokens.level());
    for (size_t slice = 0; slice < routing.exchanges.size(); ++slice) {
      models::NodeDispatchExchange::Received of_node = tokens.wait(slice);
      results.send(
          there_and_back(of_node.x, of_node.weights, of_node.routing, {}, *nodes.in_node, of_node.level));
    }
    sum = results.sum(none);
  } else {
    auto dispatch = std::make_shared<models::Dispatch>(models::dispatch_tokens(
        input.choices, input.experts, models::RowCounts::kOnHost, kernels::kGroupUnit, input.slices));
    KeptRouting routing{.dispatch = dispatch};
    sum = there_and_back(x, weights, routing, models::CountsExchange(dispatch, ep, /*equal=*/false, {}), ep,
                         {});
  }
  sum.backward(input.grad);
  made.received = sorted_rows(at::cat(received));
  made.sum = sum.detach().to(at::kDouble);
  made.grad_x = x.grad().to(at::kDouble);
  made.grad_weights = weights.grad().to(at::kDouble);
  return made;
}

// The same in fp64, without other ranks.
Journey exact_journey(const JourneyInput& input, int64_t experts_of_rank) {
  const Tensor x = input.x.to(at::kDouble), weights = input.weights.to(at::kDouble),
               grad = input.grad.to(at::kDouble),
               factors = input.choices.floor_divide(experts_of_rank).to(at::kDouble).mul(0.1).add(0.3),
               of_token = weights.mul(factors).sum(1, /*keepdim=*/true);
  return {{}, x * of_token, grad * of_token, factors * x.mul(grad).sum(1, /*keepdim=*/true), 0};
}

double relative(const Tensor& found, const Tensor& wanted) {
  return ((found - wanted).norm() / wanted.norm()).item<double>();
}

bool same_bits(const Journey& a, const Journey& b) {
  return a.received.equal(b.received) && a.sum.equal(b.sum) && a.grad_x.equal(b.grad_x) &&
         a.grad_weights.equal(b.grad_weights);
}

struct Compared {
  bool same_rows = false;
  double sum = 0, grad_x = 0, grad_weights = 0;  // against the other form
  double error_sum = 0, error_grad = 0;          // against fp64
  double error_sum_by_expert = 0, error_grad_by_expert = 0;
  bool same_in_slices = false;  // both forms have the bits of one slice
};

// outliers: whether some columns are a thousand times as large as the others.
std::vector<Compared> compare_forms(at::ScalarType dtype, bool before, bool outliers) {
  constexpr int64_t kTokens = 160, kWidth = 200, kExperts = 16, kTopK = 6;
  return run_ranks(4, [=](const Environment& environment) {
    ProcessGroups groups(Mesh(kByNode, 4), environment, {});
    at::manual_seed(40 + environment.rank);
    std::vector<Tensor> choices;
    for (int64_t token = 0; token < kTokens; ++token)
      choices.push_back(at::randperm(kExperts, at::kInt).narrow(0, 0, kTopK).unsqueeze(0));
    Tensor columns = at::ones({kWidth});
    if (outliers)
      for (const int64_t column : {3, 70}) columns.narrow(0, column, 1).fill_(1e3);
    const JourneyInput input = {.x = at::randn({kTokens, kWidth}).mul(columns).to(dtype),
                                .weights = at::rand({kTokens, kTopK}),
                                .choices = at::cat(choices),
                                .grad = at::randn({kTokens, kWidth}).mul(columns).to(dtype),
                                .experts = kExperts,
                                .before = before};
    const Journey plain = journey(input, groups, false), by_node = journey(input, groups, true),
                  exact = exact_journey(input, kExperts / 4);
    const auto same_in_slices = [&](JourneyInput one, bool by_nodes) {
      JourneyInput sliced = one;
      sliced.slices = 3;
      const Journey whole = journey(one, groups, by_nodes), parts = journey(sliced, groups, by_nodes);
      return whole.exchanges == 1 && parts.exchanges == 3 && same_bits(parts, whole);
    };
    JourneyInput few = input;  // fewer tokens than slices
    for (Tensor* rows : {&few.x, &few.weights, &few.choices, &few.grad}) *rows = rows->narrow(0, 0, 2);
    return Compared{.same_rows = plain.received.equal(by_node.received) && plain.received.size(0) > 0,
                    .sum = relative(by_node.sum, plain.sum),
                    .grad_x = relative(by_node.grad_x, plain.grad_x),
                    .grad_weights = relative(by_node.grad_weights, plain.grad_weights),
                    .error_sum = relative(by_node.sum, exact.sum),
                    .error_grad = relative(by_node.grad_x, exact.grad_x),
                    .error_sum_by_expert = relative(plain.sum, exact.sum),
                    .error_grad_by_expert = relative(plain.grad_x, exact.grad_x),
                    .same_in_slices = same_in_slices(input, false) && same_in_slices(input, true) &&
                                      same_in_slices(few, false) && same_in_slices(few, true)};
  });
}

TinyJob job_of(const MeshConfig& mesh) {
  return {.model = "deepseek_v3", .mesh = mesh, .heads = 4, .kv_heads = 2, .experts = 4, .expert_hidden = 8};
}

std::vector<TinyStep> train_nodes(const TinyJob& job, int ranks = 4, int64_t steps = 6) {
  const auto all =
      run_ranks(ranks, [=](const Environment& environment) { return train_tiny(job, environment, steps); });
  for (const std::vector<TinyStep>& rank : all)
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses or norms");
  return all.front();
}

}  // namespace

TEST_CASE("experts get the same rows once per node as once per expert, and sums and gradients to rounding") {
  const bool before = GENERATE(false, true);
  const bool outliers = GENERATE(false, true);
  for (const Compared& rank : compare_forms(at::kFloat, before, outliers)) {
    CHECK(rank.same_rows);
    CHECK(rank.same_in_slices);
    CHECK(rank.sum <= 2e-7);
    CHECK(rank.grad_x <= 2e-7);
    CHECK(rank.grad_weights <= 2e-7);
  }
  Compared all;
  for (const Compared& rank : compare_forms(at::kBFloat16, before, outliers)) {
    CHECK(rank.same_rows);
    CHECK(rank.same_in_slices);
    all.error_sum += rank.error_sum;
    all.error_grad += rank.error_grad;
    all.error_sum_by_expert += rank.error_sum_by_expert;
    all.error_grad_by_expert += rank.error_grad_by_expert;
  }
  CAPTURE(before, outliers, all.error_sum, all.error_grad);
  // The error with which sums of nodes travel is small against the roundings that both forms have: 1.0007
  // where one column is an outlier. A rank alone has 0.997 to 1.003, as roundings fall.
  CHECK(all.error_sum <= 1.002 * all.error_sum_by_expert);
  CHECK(all.error_grad <= 1.002 * all.error_grad_by_expert);
}

TEST_CASE("tokens that travel once per node train to the losses and norms of one rank on every mesh") {
  const std::vector<TinyStep> one = train_nodes(job_of({}), 1);
  REQUIRE(one.back().loss < one.front().loss);
  CHECK(largest_difference(train_nodes(job_of(kByExpert)), one) < 1e-5);
  for (const MeshConfig& mesh :
       {kByNode, MeshConfig{.ep = 2, .ep_nodes = 2}, MeshConfig{.pp = 2, .ep = 2, .ep_nodes = 2},
        MeshConfig{.tp = 2, .ep = 2, .etp = 2, .ep_nodes = 2}, MeshConfig{.tp = 2, .ep = 4, .ep_nodes = 2},
        MeshConfig{.cp = 2, .ep = 4, .ep_nodes = 2}}) {
    CAPTURE(mesh.pp, mesh.tp, mesh.cp, mesh.ep, mesh.etp);
    TinyJob job = job_of(mesh);
    if (mesh.pp > 1) job.accumulation = 2;
    CHECK(largest_difference(train_nodes(job), one) < 1e-5);
    TinyJob sliced = job;
    sliced.expert_slices = 2;
    CHECK(largest_difference(train_nodes(sliced), one) < 1e-5);
    job.balanced = sliced.balanced = true;
    TinyJob balanced = job;
    balanced.mesh.ep_nodes = 1;
    const std::vector<TinyStep> expected = train_nodes(balanced, 4, 2);
    CHECK(largest_difference(train_nodes(job, 4, 2), expected) < 1e-5);
    CHECK(largest_difference(train_nodes(sliced, 4, 2), expected) < 1e-5);
  }
}

TEST_CASE("a recomputed block sends tokens to the same nodes, and its results have the same bits") {
  TinyJob job = job_of(kByNode);
  job.score_before_experts = GENERATE(false, true);
  job.expert_slices = GENERATE(1, 2);
  const std::vector<TinyStep> plain = train_nodes(job, 4, 3);
  using enum models::ActivationCheckpoint;
  for (const models::ActivationCheckpoint mode : {kFull, kSelectiveOp, kElementwise}) {
    TinyJob recomputed = job;
    recomputed.checkpoint = mode;
    CHECK(train_nodes(recomputed, 4, 3) == plain);
  }
}

TEST_CASE("experts in FP8 multiply the rows that come by way of another rank of their node") {
  TinyJob job = job_of(kByExpert);
  job.model = "qwen3_moe";
  job.fits_float8_experts = true;
  job.expert_hidden = 32;
  job.float8_experts = GENERATE(float8::GroupedRecipe::kRowwise, float8::GroupedRecipe::kMx);
  job.compute = at::kBFloat16;
  const std::vector<TinyStep> plain = train_nodes(job, 4, 3);
  job.expert_slices = 2;
  CHECK(largest_difference(train_nodes(job, 4, 3), plain) < 2e-2);
  job.mesh = kByNode;
  job.expert_slices = GENERATE(1, 2);
  CHECK(largest_difference(train_nodes(job, 4, 3), plain) < 2e-2);
}

TEST_CASE("between nodes a rank sends each token once, and a selective checkpoint sends none again") {
  constexpr int64_t kWidth = 18, kTopK = 2, kBlocks = 2;
  const auto mode = GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kSelectiveOp,
                             models::ActivationCheckpoint::kFull);
  const int64_t slices = GENERATE(1, 2);
  const auto sent = [&](const MeshConfig& mesh) {
    TinyJob job = job_of(mesh);
    job.checkpoint = mode;
    job.expert_slices = slices;
    job.balanced = true;  // experts 0 and 1 of the first node, or 2 and 3 of the second
    const auto all = run_ranks(4, [=](const Environment& environment) {
      TinyTraining training(job, environment);
      training.ledger().reset();
      training.first_gradients();
      const auto of_group = [&](const char* group) {
        return training.ledger().entry(group, "all_to_all").bytes;
      };
      return std::vector<int64_t>{of_group("ep/0"), of_group("ep_nodes/0") + of_group("ep_nodes/1"),
                                  of_group("ep_in_node/0") + of_group("ep_in_node/1")};
    });
    std::vector<int64_t> sums(3);
    for (const std::vector<int64_t>& rank : all)
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += rank[i];
    return sums;
  };
  const int64_t again = mode == models::ActivationCheckpoint::kFull ? 1 : 0;
  const int64_t tokens =
      TinyTraining::kGlobalBatch * TinyTraining::kSeqLen * kBlocks / 2;  // to the other node
  const std::vector<int64_t> by_node = sent(kByNode), by_expert = sent(kByExpert);
  CHECK(by_node[0] == 0);
  // There and back in forward and in backward; weights go there and their gradients come back.
  CHECK(by_node[1] == tokens * ((4 + again) * kWidth * 4 + (2 + again) * kTopK * 4));
  // Of two choices each, one is on this rank of the node.
  CHECK(by_node[2] == 2 * tokens * (4 + 2 * again) * kWidth * 4);
  CHECK(by_expert[0] == 2 * tokens * kTopK * (4 + 2 * again) * kWidth * 4 * 3 / 4);
}

}  // namespace hyperion::parallel
