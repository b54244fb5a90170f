// Expert parallelism with FSDP and HSDP on a CPU: the choices, losses, norms and gradients of one rank, with
// no more bytes than planned.
#include <algorithm>
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kStepsOfExperts = 10;

struct ExpertLayout {
  int ranks;
  MeshConfig mesh;
  int64_t experts = 4, accumulation = 1, slices = 1;
};
// The experts of a rank are one or two; over efsdp 2 they are one each, or stretches of one: of w1's nine
// rows in one, of w2's 18 in two.
const std::vector<ExpertLayout> kExpertLayouts = {
    {2, {.ep = 2}, 4, 3}, {4, {.ep = 4}},          {4, {.ep = 2}}, {4, {.dp_replicate = 2, .ep = 2}},
    {4, {.ep = 2}, 2},    {4, {.ep = 4}, 4, 1, 3},
};

TinyJob job_with_experts(const ExpertLayout& layout) {
  return {.model = "deepseek_v3",
          .mesh = layout.mesh,
          .accumulation = layout.accumulation,
          .experts = layout.experts,
          .expert_hidden = 9,
          .expert_slices = layout.slices};
}

struct ExpertRun {
  std::vector<double> losses, norms, biases;
};

ExpertRun train_experts(int ranks, const TinyJob& job, int64_t steps = kStepsOfExperts) {
  // Losses, norms, and then the biases of all experts.
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    std::vector<double> numbers(2 * static_cast<size_t>(steps));
    for (int64_t step = 0; step < steps; ++step) {
      const TinyStep made = training.step(step);
      numbers[step] = made.loss;
      numbers[steps + step] = made.grad_norm;
    }
    training.audit_replicas();
    for (const models::ExpertBalancePtr& balance : training.model().balances())
      for (int64_t expert = 0; expert < job.experts; ++expert)
        numbers.push_back(balance->bias->weight[expert].item<double>());
    return numbers;
  });
  for (const std::vector<double>& rank : all)
    if (rank != all.front()) throw std::runtime_error("the ranks have different losses, norms or biases");
  const auto first = all.front().begin();
  return {{first, first + steps}, {first + steps, first + 2 * steps}, {first + 2 * steps, all.front().end()}};
}

double largest_part(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, std::abs(found.at(i) - expected[i]) / std::abs(expected[i]));
  return largest;
}

// Of step 0: gradients by parameter and element, and how many tokens of all ranks each expert of each block
// was sent.
struct FirstOfExperts {
  std::map<int64_t, std::map<int64_t, double>> gradients;
  std::vector<int64_t> counts;
};

// one_sided: biases send all tokens to experts 0 and 1.
FirstOfExperts first_of_experts(int ranks, const TinyJob& job, bool one_sided) {
  constexpr int64_t kCount = -1;  // instead of a parameter: the value is a count
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    if (one_sided)
      for (const models::ExpertBalancePtr& balance : training.model().balances())
        balance->bias->weight.narrow(0, 0, 2).fill_(100);
    std::vector<TinyTraining::GradientElement> found = training.first_gradients();
    int64_t index = 0;
    for (const models::ExpertBalancePtr& balance : training.model().balances())
      for (int64_t expert = 0; expert < job.experts; ++expert)
        found.push_back({kCount, index++, balance->counts[expert].item<float>()});
    return found;
  });
  FirstOfExperts first;
  for (const auto& rank : all)
    for (const auto& [parameter, element, value] : rank) {
      if (parameter == kCount) {
        first.counts.resize(std::max(first.counts.size(), static_cast<size_t>(element) + 1));
        first.counts[element] += static_cast<int64_t>(value);
        continue;
      }
      const auto [known, added] = first.gradients[parameter].try_emplace(element, value);
      if (!added && known->second != static_cast<double>(value))
        throw std::runtime_error("two ranks have different numbers for one element");
    }
  return first;
}

}  // namespace

TEST_CASE("expert parallelism trains to the losses, norms and biases of one rank on every mesh") {
  std::map<int64_t, ExpertRun> of_one_rank;
  for (const ExpertLayout& layout : kExpertLayouts) {
    CAPTURE(layout.ranks, layout.mesh.ep, layout.mesh.dp_replicate, layout.experts);
    if (!of_one_rank.contains(layout.experts))
      of_one_rank[layout.experts] = train_experts(1, job_with_experts({1, {}, layout.experts}));
    const ExpertRun& one = of_one_rank[layout.experts];
    REQUIRE(one.losses.back() < 0.8 * one.losses.front());
    if (layout.experts > 2) REQUIRE(*std::ranges::max_element(one.biases) > 0);
    const ExpertRun found = train_experts(layout.ranks, job_with_experts(layout));
    CHECK(largest_part(found.losses, one.losses) < 1e-6);
    CHECK(largest_part(found.norms, one.norms) < 2e-5);
    CHECK(found.biases == one.biases);
  }
}

TEST_CASE("the gradient of every parameter and the count of every expert are those of one rank") {
  const auto [before, one_sided] =
      GENERATE(std::pair(false, false), std::pair(true, false), std::pair(false, true));
  std::map<int64_t, FirstOfExperts> of_one_rank;
  for (const ExpertLayout& layout : kExpertLayouts) {
    CAPTURE(before, one_sided, layout.ranks, layout.mesh.ep, layout.mesh.dp_replicate, layout.experts);
    const auto first = [&, before = before, one_sided = one_sided](const ExpertLayout& of) {
      TinyJob job = job_with_experts(of);
      job.score_before_experts = before;
      job.reduce_once = one_sided;
      return first_of_experts(of.ranks, job, one_sided);
    };
    if (!of_one_rank.contains(layout.experts)) of_one_rank[layout.experts] = first({1, {}, layout.experts});
    const FirstOfExperts &one = of_one_rank[layout.experts], found = first(layout);
    CHECK(found.counts == one.counts);
    REQUIRE(found.gradients.size() == one.gradients.size());
    for (const auto& [parameter, elements] : one.gradients) {
      REQUIRE(found.gradients.at(parameter).size() == elements.size());
      double difference = 0, size = 0;
      for (const auto& [element, value] : elements) {
        difference += std::pow(found.gradients.at(parameter).at(element) - value, 2);
        size += std::pow(value, 2);
      }
      CAPTURE(parameter);
      CHECK(std::sqrt(difference) <= 1e-5 * std::sqrt(size));  // zeros where an expert has no tokens
    }
  }
}

TEST_CASE("the most rows of a rank are those that its group has sent to its experts") {
  constexpr int64_t kExperts = 4, kRanks = 4;
  const auto [tensor, ranks] = GENERATE(std::pair(1, 2), std::pair(2, 2), std::pair(1, 4));
  const int64_t group = ranks;
  TinyJob job = job_with_experts({kRanks, {.tp = tensor, .ep = ranks}});
  if (tensor > 1) job.heads = 4;
  const auto all = run_ranks(kRanks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    for (const models::ExpertBalancePtr& balance : training.model().balances())
      balance->bias->weight[kExperts - 1] = 100.0;  // of each group the last rank has the most rows
    training.first_gradients();
    std::vector<double> found;  // the counts of each block, and then what is reported
    for (const models::ExpertBalancePtr& balance : training.model().balances())
      for (int64_t expert = 0; expert < kExperts; ++expert)
        found.push_back(balance->counts[expert].item<double>());
    const std::map<std::string, double> loads = training.expert_loads();
    found.insert(found.end(), {loads.at("experts/worst_layer"), loads.at("experts/most_rows_of_a_rank")});
    return found;
  });
  for (const std::vector<double>& rank : all) {
    const int64_t layer = static_cast<int64_t>(rank.at(rank.size() - 2)), first = (layer - 1) * kExperts;
    double most = 0;  // layer 0 has no experts
    for (int64_t receiver = 0; receiver < kRanks; ++receiver) {
      double rows = 0;
      for (int64_t sender = receiver / group * group; sender < (receiver / group + 1) * group; ++sender)
        for (int64_t expert = 0; expert < kExperts / group; ++expert)
          rows += all[sender].at(first + receiver % group * (kExperts / group) + expert);
      most = std::max(most, rows);
    }
    CHECK(rank.back() == most);
  }
}

TEST_CASE("with expert parallelism checkpointing and resharding and transports change no bit") {
  TinyJob base = job_with_experts({2, {.ep = 2}});
  base.score_before_experts = GENERATE(false, true);
  base.expert_slices = GENERATE(1, 2);
  const auto train = [](const TinyJob& job) { return train_experts(2, job, 4).losses; };
  const std::vector<double> plain = train(base);
  using models::ActivationCheckpoint;
  for (const ActivationCheckpoint mode : {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp,
                                          ActivationCheckpoint::kElementwise}) {
    TinyJob job = base;
    job.checkpoint = mode;
    CHECK(train(job) == plain);
  }
  TinyJob unsharded = base, over_sockets = base;
  unsharded.reshard_after_forward = false;
  over_sockets.shared_memory = false;
  CHECK(train(unsharded) == plain);
  CHECK(train(over_sockets) == plain);
}

TEST_CASE("tokens in slices train to the losses and gradients of one slice") {
  struct Case {
    int ranks;
    MeshConfig mesh;
    int64_t slices;
    bool balanced = false;
  };
  const auto [ranks, mesh, slices, balanced] =
      GENERATE(Case{2, {.ep = 2}, 2}, Case{4, {.ep = 4}, 3}, Case{4, {.tp = 2, .ep = 2, .etp = 2}, 2, true},
               Case{4, {.tp = 2, .ep = 4}, 2}, Case{4, {.cp = 2, .ep = 4}, 2},
               Case{4, {.pp = 2, .ep = 2}, 2, true}, Case{2, {.ep = 2}, 4, true});
  TinyJob whole = job_with_experts({ranks, mesh});
  whole.score_before_experts = GENERATE(false, true);
  if (mesh.tp > 1) {
    whole.heads = 4;
    whole.expert_hidden = 8;
  }
  if (mesh.pp > 1) {
    whole.accumulation = 2;
    whole.schedule = PipelineKind::kZbvZeroBubble;  // which defers wgrads
  }
  whole.balanced = balanced;
  TinyJob sliced = whole;
  sliced.expert_slices = slices;
  CAPTURE(ranks, mesh.tp, mesh.cp, mesh.pp, slices, whole.score_before_experts);
  const ExpertRun expected = train_experts(ranks, whole, 4), found = train_experts(ranks, sliced, 4);
  CHECK(found.losses.front() == expected.losses.front());  // only wgrads of experts are added up otherwise
  CHECK(largest_part(found.losses, expected.losses) < 1e-6);
  CHECK(largest_part(found.norms, expected.norms) < 1e-5);
  CHECK(found.biases == expected.biases);
}

TEST_CASE(
    "expert parallel ranks send the rows of their choices and a selective checkpoint sends none again") {
  struct Sent {
    int64_t bytes = 0, to_others = 0, exchanges = 0;
  };
  constexpr int64_t kExperts = 4, kTopK = 2, kWidth = 18, kBlocks = 2, kRanks = 2;
  const auto mode = GENERATE(models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kSelectiveOp,
                             models::ActivationCheckpoint::kFull);
  const bool balanced = GENERATE(false, true);
  const int64_t slices = GENERATE(1, 3);
  const int tensor = GENERATE(1, 2);  // of two, each sends its part of the sequences
  TinyJob job = job_with_experts({kRanks, {.tp = tensor, .ep = kRanks}});
  if (tensor > 1) job.heads = 4;
  job.checkpoint = mode;
  job.balanced = balanced;
  job.expert_slices = slices;
  const auto all = run_ranks(kRanks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    training.ledger().reset();
    training.first_gradients();
    const CommLedger::Entry exchanged = training.ledger().entry("ep/0", "all_to_all");
    Sent sent{.bytes = exchanged.bytes, .exchanges = exchanged.calls};
    for (const models::ExpertBalancePtr& balance : training.model().balances())
      for (int64_t expert = 0; expert < kExperts; ++expert)
        if (expert / (kExperts / kRanks) != environment.rank)
          sent.to_others += balance->counts[expert].item<int64_t>();
    return sent;
  });
  int64_t bytes = 0, rows = 0;
  for (const Sent& rank : all) {
    bytes += rank.bytes;
    rows += rank.to_others;
  }
  // There and back in forward and in backward, and where a block is run again forward's once more.
  const int64_t times = mode == models::ActivationCheckpoint::kFull ? 6 : 4, width = kWidth * 4;
  const int64_t counts = balanced ? 0 : slices * kBlocks * kRanks * (kRanks - 1) * (kExperts / kRanks) * 8;
  for (const Sent& rank : all) CHECK(rank.exchanges == kBlocks * (times * slices + (balanced ? 0 : 1)));
  CHECK(bytes == times * rows * width + counts);
  if (balanced) {
    const int64_t tokens = TinyTraining::kGlobalBatch * TinyTraining::kSeqLen;
    CHECK(bytes == kBlocks * times * tokens * kTopK * width * (kRanks - 1) / kRanks);
  }
}

}  // namespace hyperion::parallel
