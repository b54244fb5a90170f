// FP8 linears under sharding: what travels, how often weights are cast, and that neither mesh nor options
// change the numbers. Products are emulated, so the arithmetic is that of tests/goldens/float8.
#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstdint>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using models::ActivationCheckpoint;

TinyJob float8_job(const char* recipe, bool gather = false, MeshConfig mesh = {}) {
  return {.mesh = mesh, .compute = at::kBFloat16, .float8 = recipe, .float8_gather = gather};
}

}  // namespace

TEST_CASE("FP8 all-gathers move exactly half the bytes of the converted weights and all of the others") {
  struct Gathered {
    int64_t bytes;                                                 // sent in a step
    int64_t blocks_encoded = 0, blocks_others = 0, elsewhere = 0;  // elements of this rank's shards
  };
  const auto results = run_ranks(2, [](const Environment& environment) {
    TinyTraining training(float8_job("tensorwise", /*gather=*/true), environment);
    training.ledger().reset();
    training.step(0);
    Gathered gathered{training.ledger().entry("fsdp/0", "all_gather").bytes};
    for (const auto& group : training.stage().groups())
      for (const auto& parameter : group->parameters())
        (!group->name().starts_with("layers") ? gathered.elsewhere
         : parameter->encoded()               ? gathered.blocks_encoded
                                              : gathered.blocks_others) += parameter->padded_numel();
    return gathered;
  });
  for (const Gathered& rank : results) {
    // Blocks are gathered twice, embedding and head once; the half of the whole that is sent is this rank's.
    CHECK(rank.bytes == 2 * (rank.blocks_encoded + 2 * rank.blocks_others) + 2 * rank.elsewhere);
    CHECK(rank.blocks_encoded == 3 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32) / 2);
  }
}

TEST_CASE("precomputed scales are one reduction a step and change no bit") {
  struct Trained {
    std::array<TinyStep, 3> steps;
    int64_t all_reduces;
  };
  const auto run = [](bool precompute, bool gather) {
    return run_ranks(2,
                     [=](const Environment& environment) {
                       TinyJob job = float8_job("tensorwise", gather);
                       job.float8_precompute = precompute;
                       TinyTraining training(job, environment);
                       Trained trained;
                       for (int64_t step = 0; step < 3; ++step) trained.steps[step] = training.step(step);
                       trained.all_reduces = training.ledger().entry("fsdp/0", "all_reduce").calls;
                       return trained;
                     })
        .front();
  };
  const Trained fused = run(true, true), lazy = run(false, true), off = run(true, false);
  CHECK((fused.steps == lazy.steps));
  CHECK(fused.all_reduces - off.all_reduces == 4);     // after the initial weights and each step
  CHECK(lazy.all_reduces - off.all_reduces == 3 * 3);  // each block before its first gather of a step
  CHECK(fused.steps[0].loss != off.steps[0].loss);     // the cast is of the fp32 master, not of its bf16 copy
}

TEST_CASE("FP8 does not depend on the mesh when microbatches are equal") {
  constexpr int64_t kSteps = 10;
  for (const auto& [recipe, gather] : {std::pair("tensorwise", false), std::pair("tensorwise", true),
                                       std::pair("rowwise", false), std::pair("rowwise_with_gw_hp", false)}) {
    const auto run = [&](int ranks, MeshConfig mesh, int64_t accumulation) {
      return run_ranks(ranks,
                       [&, mesh](const Environment& environment) {
                         TinyJob job = float8_job(recipe, gather, mesh);
                         job.accumulation = accumulation;
                         return train_tiny(job, environment, kSteps);
                       })
          .front();
    };
    const auto one = run(1, {}, 4), two = run(2, {}, 2), four = run(4, {}, 1);
    const auto hybrid = run(4, {.dp_replicate = 2, .dp_shard = 2}, 1);
    INFO(recipe << (gather ? " with FP8 gather" : ""));
    for (const auto& other : {two, four, hybrid}) {
      CHECK(other[0].loss == Approx(one[0].loss).epsilon(1e-6));
      CHECK(other[0].grad_norm == Approx(one[0].grad_norm).epsilon(1e-6));
      // Gradients are summed in another order, which FP8 rounding multiplies: at most 2.5e-3 was seen.
      for (int64_t step = 0; step < kSteps; ++step) CHECK(std::abs(other[step].loss - one[step].loss) < 5e-3);
    }
    CHECK(one.back().loss < one.front().loss - 0.2);  // and it learns
  }
}

TEST_CASE("FP8 weights and their scales have the same bits for every context parallel degree") {
  struct Element {
    int64_t parameter, element;
    uint8_t code;
    float scale;
    auto operator<=>(const Element&) const = default;
  };
  const auto gathered = [](int ranks, MeshConfig mesh) {
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      TinyJob job = float8_job("tensorwise", /*gather=*/true, mesh);
      job.float8_precompute = false;  // what the first step gathers is of the initial weights
      TinyTraining training(job, environment);
      training.step(0);
      std::vector<Element> elements;
      int64_t index = 0;
      for (const auto& parameter : training.stage().parameters()) {
        ++index;
        if (!parameter->encoded()) continue;
        const at::Tensor sent = parameter->all_gather_input();
        const auto* codes = static_cast<const uint8_t*>(sent.const_data_ptr());
        const auto scale = parameter->parameter().encoded.scale.item<float>();
        for_each_run(parameter->parameter().shape, parameter->box(), [&](const Run& run) {
          for (int64_t i = 0; i < run.count; ++i)
            elements.push_back({index, run.in_tensor + i, codes[run.in_box + i], scale});
        });
      }
      return elements;
    });
    std::vector<Element> elements;
    for (const auto& rank : all) elements.insert(elements.end(), rank.begin(), rank.end());
    std::ranges::sort(elements);
    return elements;
  };
  const std::vector<Element> one = gathered(1, {});
  CHECK(one.size() == 3 * (32 * 32 * 2 + 2 * 16 * 32 + 3 * 48 * 32));
  CHECK((gathered(2, {.cp = 2}) == one));
  CHECK((gathered(4, {.dp_shard = 2, .cp = 2}) == one));
}

TEST_CASE("FP8 with context parallelism differs from one rank by the scales of what each rank has") {
  // With one scale for each tensor of a rank's tokens numbers are rounded otherwise than with one for all
  // tokens: by FP8's rounding. With one for each token they are rounded alike, and only sums differ in order,
  // which a norm of FP8 gradients shows where a rounding falls to the other side.
  for (const auto& [recipe, of_loss, of_norm] :
       {std::tuple("tensorwise", 5e-4, 1e-3), std::tuple("rowwise", 1e-6, 5e-4),
        std::tuple("rowwise_with_gw_hp", 1e-6, 5e-4)}) {
    const auto run = [&](int ranks, MeshConfig mesh) {
      return run_ranks(ranks,
                       [&](const Environment& environment) {
                         TinyJob job = float8_job(recipe, false, mesh);
                         job.accumulation = 2;
                         return train_tiny(job, environment, 5);
                       })
          .front();
    };
    const auto one = run(1, {}), two = run(2, {.cp = 2});
    CAPTURE(recipe);
    CHECK(two[0].loss == Approx(one[0].loss).epsilon(of_loss));
    CHECK(two[0].grad_norm == Approx(one[0].grad_norm).epsilon(of_norm));
    for (size_t step = 0; step < one.size(); ++step) {
      CAPTURE(step);  // in 20 steps at most 6.4e-3 was seen
      CHECK(std::abs(two[step].loss - one[step].loss) < 1.5e-2);
    }
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

TEST_CASE("FP8 products and casts of weights are as many as checkpointing and recipe promise") {
  struct Counts {
    int64_t products, weight_casts;
  };
  // Of the seven layers of a block.
  for (const auto& [mode, repeated] :
       {std::pair(ActivationCheckpoint::kNone, 0), std::pair(ActivationCheckpoint::kFull, 6),
        std::pair(ActivationCheckpoint::kSelectiveOp, 3)}) {
    for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp"}) {
      const Counts counts = run_one_rank([&, checkpoint = mode](const Environment& environment) -> Counts {
        TinyJob job = float8_job(recipe);
        job.checkpoint = checkpoint;
        job.accumulation = 3;
        TinyTraining training(job, environment);
        training.step(0);
        training.step(1);
        const auto& counters = *training.float8().counters;
        return {counters.products, counters.weight_casts};
      });
      INFO(recipe);
      const int once = std::string(recipe) == "rowwise_with_gw_hp" ? 2 : 3;
      // 2 steps of 3 microbatches in 3 blocks.
      CHECK(counts.products == 2 * 3 * 3 * (7 * once + repeated));
      // Shard degree 1: once a step, for each way the recipe scales a weight.
      CHECK(counts.weight_casts == 2 * 21 * (std::string(recipe) == "tensorwise" ? 1 : 2));
    }
  }
  const auto casts = [](bool gather, bool reshard_after_forward) {
    return run_ranks(2,
                     [=](const Environment& environment) {
                       TinyJob job = float8_job("tensorwise", gather);
                       job.reshard_after_forward = reshard_after_forward;
                       job.accumulation = 3;
                       job.checkpoint = ActivationCheckpoint::kFull;
                       TinyTraining training(job, environment);
                       training.step(0);
                       return training.float8().counters->weight_casts;
                     })
        .front();
  };
  CHECK(casts(true, true) == 0);            // encoded before the all-gather
  CHECK(casts(false, true) == 3 * 2 * 21);  // forward; recompute and backward together
  CHECK(casts(false, false) == 3 * 21);     // unsharded from forward to backward
}

TEST_CASE("a weight gathered in FP8 keeps no bf16 copy") {
  struct Held {
    int64_t gathered = 0, sent = 0, bf16_of_encoded = 0;  // bytes
    int64_t encoded = 0, others = 0;                      // elements of this rank's shards
    int64_t derived = 0;                                  // weights that keep a copy made from them
  };
  const auto results = run_ranks(3, [](const Environment& environment) {
    TinyTraining training(float8_job("tensorwise", /*gather=*/true), environment);
    training.step(0);
    Held held;
    for (const auto& group : training.stage().groups()) held.gathered += TinyTraining::gathered_bytes(*group);
    for (const auto& parameter : training.stage().parameters()) {
      held.sent += static_cast<int64_t>(parameter->all_gather_input().nbytes());
      (parameter->encoded() ? held.encoded : held.others) += parameter->padded_numel();
      if (parameter->encoded())
        held.bf16_of_encoded += static_cast<int64_t>(parameter->parameter().weight.storage().nbytes());
      if (parameter->parameter().derived) ++held.derived;
    }
    return held;
  });
  for (const Held& rank : results) {
    CHECK(rank.gathered == 0);
    CHECK(rank.sent == rank.encoded + 2 * rank.others);
    CHECK(rank.bf16_of_encoded == 0);
    CHECK(rank.derived == 0);
  }
}

}  // namespace hyperion::parallel
