// FSDP, HSDP and replication on a CPU: equal to one rank, in FSDP2's order, with no more memory and bytes
// than planned.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "tests/distributed/trace_ranges.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion {
namespace {

constexpr int64_t kSteps = 20;

std::vector<double> train_on(int ranks, const TinyJob& job, int64_t steps = kSteps) {
  return run_ranks(ranks, [=](const Environment& environment) { return train_tiny(job, environment, steps); })
      .front();
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b.at(i)) / std::abs(b[i]));
  return largest;
}

std::vector<double> losses(const std::vector<double>& values) {
  std::vector<double> picked;
  for (size_t i = 0; i < values.size(); i += 2) picked.push_back(values[i]);
  return picked;
}

}  // namespace

TEST_CASE("every mesh trains to the same losses") {
  const char* model = GENERATE("llama3", "qwen3");
  const std::vector<double> one = losses(train_on(1, {.model = model}));
  REQUIRE(one.back() < 0.8 * one.front());
  struct Layout {
    int ranks;
    MeshConfig mesh;
    int64_t accumulation;
  };
  for (const Layout& layout :
       {Layout{1, {}, 3}, Layout{2, {}, 1}, Layout{3, {}, 2}, Layout{4, {}, 1},
        Layout{4, {.dp_replicate = 2}, 3}, Layout{3, {.dp_replicate = 3, .dp_shard = 1}, 2}}) {
    CAPTURE(model, layout.ranks, layout.mesh.dp_replicate, layout.accumulation);
    const TinyJob job{.model = model, .mesh = layout.mesh, .accumulation = layout.accumulation};
    CHECK(largest_difference(losses(train_on(layout.ranks, job)), one) < 5e-6);
  }
}

TEST_CASE("activation checkpointing and resharding and transports change no bit") {
  const TinyJob base{};
  const std::vector<double> plain = train_on(2, base, 6);
  for (ActivationCheckpoint mode : {ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp}) {
    TinyJob job = base;
    job.checkpoint = mode;
    CHECK(train_on(2, job, 6) == plain);
  }
  TinyJob unsharded = base, over_sockets = base;
  unsharded.reshard_after_forward = false;
  CHECK(train_on(2, unsharded, 6) == plain);
  over_sockets.shared_memory = false;
  CHECK(train_on(2, over_sockets, 6) == plain);
}

TEST_CASE("bf16 compute trains close to fp32 but not equal") {
  const std::vector<double> fp32 = losses(train_on(2, {})),
                            bf16 = losses(train_on(2, {.compute = at::kBFloat16}));
  CHECK(bf16 != fp32);
  CHECK(largest_difference(bf16, fp32) < 0.05);
}

// The order of FSDP2 (2 ranks, embedding + 3 blocks + head), but for two things: in forward the next unit's
// all-gather starts before a unit runs, not after (a GPU's queue hides the difference, a CPU has none), and
// the embedding's weight is not gathered for its backward, which reads none.
TEST_CASE("a step gathers and frees and reduces in the order of FSDP2 and holds two units at most") {
  const auto outcome = run_ranks_outcome(2, [](const Environment& environment) -> std::vector<double> {
    TinyTraining training({}, environment);
    std::string trace;
    {
      const TraceRangeListener listener([&](const std::string& range) {
        if (range.find(" wait ") != std::string::npos) return;
        trace += range + " |";
        for (const auto& unit : training.fsdp_model().groups())
          if (TinyTraining::gathered_bytes(*unit) > 0) trace += " " + unit->name();
        trace += "\n";
      });
      training.step(0);
    }
    // After each bar: the units that hold gathered weights at that moment, or have them in flight.
    const std::string expected =
        "all-gather tok_embeddings | tok_embeddings\n"
        "all-gather layers.0 | tok_embeddings layers.0\n"
        "forward tok_embeddings | tok_embeddings layers.0\n"
        "all-gather layers.1 | layers.0 layers.1\n"
        "forward layers.0 | layers.0 layers.1\n"
        "all-gather layers.2 | layers.1 layers.2\n"
        "forward layers.1 | layers.1 layers.2\n"
        "all-gather norm,output | layers.2 norm,output\n"
        "forward layers.2 | layers.2 norm,output\n"
        "all-gather layers.2 | layers.2 norm,output\n"
        "forward and backward norm,output | layers.2 norm,output\n"
        "reduce-scatter norm,output | layers.2\n"
        "all-gather layers.1 | layers.1 layers.2\n"
        "backward layers.2 | layers.1 layers.2\n"
        "reduce-scatter layers.2 | layers.1\n"
        "all-gather layers.0 | layers.0 layers.1\n"
        "backward layers.1 | layers.0 layers.1\n"
        "reduce-scatter layers.1 | layers.0\n"
        "backward layers.0 | layers.0\n"
        "reduce-scatter layers.0 |\n"
        "backward tok_embeddings |\n"
        "reduce-scatter tok_embeddings |\n";
    if (trace != expected) throw std::runtime_error("trace was:\n" + trace);
    return {};
  });
  for (const RankOutcome& rank : outcome) {
    INFO(rank.error);
    CHECK(rank.error.empty());
  }
}

TEST_CASE("a step moves the planned bytes and accumulation reduces the replicas once") {
  const auto bytes = run_ranks(4, [](const Environment& environment) -> std::vector<double> {
    TinyTraining training({.mesh = {.dp_replicate = 2}, .compute = at::kBFloat16, .accumulation = 3},
                          environment);
    double padded = 0, blocks = 0, table = 0;
    for (const auto& group : training.fsdp_model().groups())
      for (const auto& parameter : group->parameters()) {
        const double n = static_cast<double>(parameter->padded_numel() * 2);
        padded += n;
        if (group->name().starts_with("layers")) blocks += n;
        if (group->name() == "tok_embeddings") table += n;
      }
    training.ledger().reset();
    training.step(0);
    double gather = 0, scatter = 0, sum = 0;
    for (const auto& [key, entry] : training.ledger().entries()) {
      if (key.first.starts_with("fsdp") && key.second == "all_gather")
        gather += static_cast<double>(entry.bytes);
      if (key.first.starts_with("fsdp") && key.second == "reduce_scatter")
        scatter += static_cast<double>(entry.bytes);
      if (key.first.starts_with("dp_replicate") && key.second == "all_reduce")
        sum += static_cast<double>(entry.bytes);
    }
    // per microbatch: every unit gathered once in bf16, blocks twice; fp32 gradients scattered; replicas
    // once, at the end
    return {gather, 3 * 0.5 * 2 * (padded + blocks), scatter, 3 * 0.5 * 4 * padded,
            sum,    0.5 * 2 * 4 * padded / 2};
  });
  for (const auto& rank : bytes) {
    CHECK(rank[0] == rank[1]);
    CHECK(rank[2] == rank[3]);
    CHECK(rank[4] == rank[5]);
  }
}

TEST_CASE("over sockets a unit is gathered in one message and through memory in one per weight") {
  const auto all_gathers = [](bool shared_memory) {
    return run_ranks(2, [=](const Environment& environment) -> std::vector<double> {
      TinyTraining training({.shared_memory = shared_memory}, environment);
      training.step(0);
      double weights = 0;  // gathered in a step: a block's twice
      for (const auto& unit : training.fsdp_model().groups())
        weights +=
            static_cast<double>(unit->parameters().size()) * (unit->name().starts_with("layers") ? 2 : 1);
      return {static_cast<double>(training.ledger().entry("fsdp/0", "all_gather").calls), weights};
    });
  };
  for (const auto& rank : all_gathers(false)) CHECK(rank[0] == 5 + 3);  // units, and blocks again in backward
  for (const auto& rank : all_gathers(true)) CHECK(rank[0] == rank[1]);
}

TEST_CASE("weights hold no storage after reshard and state takes 18 bytes per parameter in bf16") {
  const auto results = run_ranks(3, [](const Environment& environment) -> std::vector<double> {
    TinyTraining training({.compute = at::kBFloat16}, environment);
    training.step(0);
    double unsharded = 0, state = 0, padded = 0;
    for (const auto& group : training.fsdp_model().groups())
      unsharded += static_cast<double>(TinyTraining::gathered_bytes(*group));
    for (const auto& parameter : training.fsdp_model().parameters()) {
      padded += static_cast<double>(parameter->padded_numel());
      state += static_cast<double>(parameter->master().storage().nbytes() +
                                   parameter->all_gather_input().storage().nbytes());
      state += 8.0 * static_cast<double>(
                         parameter->master().numel());  // exp_avg and exp_avg_sq have the master's shape
    }
    for (const auto& group : training.fsdp_model().groups())
      state += static_cast<double>(group->owned_grads().storage().nbytes());
    return {unsharded, state, padded * 18};
  });
  for (const auto& rank : results) {
    CHECK(rank[0] == 0);
    CHECK(rank[1] <= rank[2]);
    CHECK(rank[1] >= rank[2] * 0.8);  // padding of this odd model has no optimizer state
  }
}

}  // namespace hyperion
