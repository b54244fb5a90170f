// FP8 linears under sharding: what travels, how often weights are cast, and that neither mesh nor options
// change the numbers. Products are emulated, so the arithmetic is that of tests/goldens/float8.
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion {
namespace {

TinyJob float8_job(const char* recipe, bool gather = false, MeshConfig mesh = {}) {
  return {.mesh = mesh, .compute = at::kBFloat16, .float8 = recipe, .float8_gather = gather};
}

int64_t padded(TinyTraining& training, bool converted) {
  int64_t sum = 0;
  for (const auto& parameter : training.fsdp_model().parameters())
    if (parameter->encoded() == converted) sum += parameter->padded_numel();
  return sum;
}

int64_t counted(TinyTraining& training, const std::string& operation, bool calls) {
  const auto entry = training.ledger().entry("fsdp/0", operation);
  return calls ? entry.calls : entry.bytes;
}

}  // namespace

TEST_CASE("FP8 all-gathers move exactly half the bytes of the converted weights and all of the others") {
  const auto results = run_ranks(2, [](const Environment& environment) -> std::vector<double> {
    TinyTraining training(float8_job("tensorwise", /*gather=*/true), environment);
    const int64_t before = counted(training, "all_gather", false);
    training.step(0);
    int64_t blocks_encoded = 0, blocks_others = 0;
    for (const auto& group : training.fsdp_model().groups())
      if (group->name().starts_with("layers"))
        for (const auto& parameter : group->parameters())
          (parameter->encoded() ? blocks_encoded : blocks_others) += parameter->padded_numel();
    // Blocks are gathered twice, embedding and head once; half of the whole is another rank's.
    const int64_t expected =
        2 * blocks_encoded + 2 * (2 * blocks_others) + 2 * (padded(training, false) - blocks_others);
    return {static_cast<double>(counted(training, "all_gather", false) - before),
            static_cast<double>(expected), static_cast<double>(blocks_encoded)};
  });
  for (const auto& rank : results) {
    CHECK(rank[0] == rank[1]);
    CHECK(rank[2] == 3 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32) / 2.0);
  }
}

TEST_CASE("precomputed scales are one reduction a step and change no bit") {
  const auto run = [](bool precompute, bool gather) {
    return run_ranks(2, [=](const Environment& environment) -> std::vector<double> {
      TinyJob job = float8_job("tensorwise", gather);
      job.float8_precompute = precompute;
      TinyTraining training(job, environment);
      std::vector<double> values;
      for (int64_t step = 0; step < 3; ++step) {
        const auto [loss, norm] = training.step(step);
        values.insert(values.end(), {loss, norm});
      }
      values.push_back(static_cast<double>(counted(training, "all_reduce", true)));
      return values;
    });
  };
  const auto fused = run(true, true), lazy = run(false, true), off = run(true, false);
  for (size_t i = 0; i < 6; ++i) CHECK(fused[0][i] == lazy[0][i]);
  CHECK(fused[0][6] - off[0][6] == 4);     // after the initial weights and each step
  CHECK(lazy[0][6] - off[0][6] == 3 * 3);  // each block before its first gather of a step
  CHECK(fused[0][0] != off[0][0]);         // the cast is of the fp32 master, not of its bf16 copy
}

TEST_CASE("FP8 does not depend on the mesh when microbatches are equal") {
  for (const auto& [recipe, gather] : {std::pair("tensorwise", false), std::pair("tensorwise", true),
                                       std::pair("rowwise", false), std::pair("rowwise_with_gw_hp", false)}) {
    const auto run = [&](int ranks, MeshConfig mesh, int64_t accumulation) {
      return run_ranks(ranks,
                       [&, mesh](const Environment& environment) {
                         TinyJob job = float8_job(recipe, gather, mesh);
                         job.accumulation = accumulation;
                         return train_tiny(job, environment, 20);
                       })
          .front();
    };
    const auto one = run(1, {}, 4), two = run(2, {}, 2), four = run(4, {}, 1);
    const auto hybrid = run(4, {.dp_replicate = 2, .dp_shard = 2}, 1);
    INFO(recipe << (gather ? " with FP8 gather" : ""));
    for (const auto& other : {two, four, hybrid}) {
      CHECK(other[0] == Approx(one[0]).epsilon(1e-6));
      CHECK(other[1] == Approx(one[1]).epsilon(1e-6));
      for (size_t step = 0; step < 20; ++step) CHECK(std::abs(other[2 * step] - one[2 * step]) < 1e-3);
    }
    CHECK(one[38] < one[0] - 0.2);  // and it learns
  }
}

TEST_CASE("activation checkpointing and resharding change no bit in FP8") {
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp"}) {
    const auto run = [&](ActivationCheckpoint checkpoint, bool reshard_after_forward) {
      return run_ranks(2,
                       [&](const Environment& environment) {
                         TinyJob job = float8_job(recipe);
                         job.checkpoint = checkpoint;
                         job.reshard_after_forward = reshard_after_forward;
                         return train_tiny(job, environment, 3);
                       })
          .front();
    };
    const auto plain = run(ActivationCheckpoint::kNone, true);
    CHECK(plain == run(ActivationCheckpoint::kFull, true));
    CHECK(plain == run(ActivationCheckpoint::kSelectiveOp, true));
    CHECK(plain == run(ActivationCheckpoint::kNone, false));
  }
}

TEST_CASE("FP8 products are as many as planned and weights are cast as seldom as promised") {
  for (const ActivationCheckpoint checkpoint :
       {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp}) {
    for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp"}) {
      const auto counts = run_ranks(1, [&](const Environment& environment) -> std::vector<double> {
        TinyJob job = float8_job(recipe);
        job.checkpoint = checkpoint;
        job.accumulation = 3;
        TinyTraining training(job, environment);
        training.step(0);
        training.step(1);
        const auto& counters = *training.float8().counters;
        return {static_cast<double>(counters.products),
                2.0 * 3 * static_cast<double>(training.float8_planned()),
                static_cast<double>(counters.weight_casts)};
      });
      INFO(recipe);
      CHECK(counts[0][0] == counts[0][1]);
      // Shard degree 1: once a step, for each way the recipe scales a weight.
      CHECK(counts[0][2] == 2 * 21 * (std::string(recipe) == "tensorwise" ? 1 : 2));
    }
  }
  const auto casts = [](bool gather, bool reshard_after_forward) {
    return run_ranks(2,
                     [=](const Environment& environment) -> std::vector<double> {
                       TinyJob job = float8_job("tensorwise", gather);
                       job.reshard_after_forward = reshard_after_forward;
                       job.accumulation = 3;
                       job.checkpoint = ActivationCheckpoint::kFull;
                       TinyTraining training(job, environment);
                       training.step(0);
                       return {static_cast<double>(training.float8().counters->weight_casts)};
                     })
        .front()
        .front();
  };
  CHECK(casts(true, true) == 0);            // encoded before the all-gather
  CHECK(casts(false, true) == 3 * 2 * 21);  // forward; recompute and backward together
  CHECK(casts(false, false) == 3 * 21);     // unsharded from forward to backward
}

TEST_CASE("a weight gathered in FP8 keeps no bf16 copy") {
  const auto results = run_ranks(3, [](const Environment& environment) -> std::vector<double> {
    TinyTraining training(float8_job("tensorwise", /*gather=*/true), environment);
    training.step(0);
    double unsharded = 0, sent = 0, expected = 0, copies = 0;
    for (const auto& group : training.fsdp_model().groups())
      unsharded += static_cast<double>(TinyTraining::gathered_bytes(*group));
    for (const auto& parameter : training.fsdp_model().parameters()) {
      sent += static_cast<double>(parameter->all_gather_input().nbytes());
      expected += static_cast<double>(parameter->padded_numel()) * (parameter->encoded() ? 1 : 2);
      if (parameter->encoded())
        copies += static_cast<double>(parameter->parameter().weight.storage().nbytes());
      if (parameter->parameter().derived) ++copies;
    }
    return {unsharded, sent, expected, copies};
  });
  for (const auto& rank : results) {
    CHECK(rank[0] == 0);
    CHECK(rank[1] == rank[2]);
    CHECK(rank[3] == 0);
  }
}

}  // namespace hyperion
