#include "parallel/pipeline/schedule.h"

#include <algorithm>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/simulation.h"

namespace hyperion::parallel {
namespace {

using Catch::Matchers::Contains;
using enum PipelineKind;

std::string row(const std::vector<PipelineAction>& actions) {
  return fmt::format("{}", fmt::join(to_entries(actions), " "));
}

// A step with M microbatches where a forward costs 1 and a backward 2.
PipelineTiming timing_of(PipelineKind kind, const PipelineShape& shape) {
  return simulate(make_schedule(kind, shape), uniform_costs(1, 2, 1, 1, 0));
}

}  // namespace

TEST_CASE("pipeline actions are printed and parsed as PyTorch's") {
  for (const std::string text :
       {"2F0", "0B31", "3I7", "12W5", "1UNSHARD", "1RESHARD", "0REDUCE_GRAD", "1SEND_F3", "2RECV_F3",
        "2SEND_B0", "1RECV_B0", "(0F1;3B0)OVERLAP_F_B", "(3F0;0B12)OVERLAP_F_B"}) {
    const auto actions = parse_entry(text);
    REQUIRE(actions);
    CHECK(to_entries(*actions) == std::vector<std::string>{text});
  }
  const std::vector<PipelineAction> pair = {{PipelineOp::kForward, 0, 1, true},
                                            {PipelineOp::kBackward, 3, 0}};
  CHECK(parse_entry("(0F1;3B0)OVERLAP_F_B") == pair);
  for (const std::string text : {"",
                                 "F",
                                 "2",
                                 "2F",
                                 "F0",
                                 "2X0",
                                 "2f0",
                                 "2F0x",
                                 "-1F0",
                                 "2F-1",
                                 "2 F0",
                                 "99999999999F0",
                                 "2F99999999999",
                                 "1UNSHARD2",
                                 "REDUCE_GRAD",
                                 "()OVERLAP_F_B",
                                 "(0F1)OVERLAP_F_B",
                                 "(0F1;3B0)",
                                 "(0F1;3B0;1F1)OVERLAP_F_B",
                                 "(0F1;3B0)OVERLAP",
                                 "(0F1;3B0OVERLAP_F_B",
                                 "(0F1;3SEND_B0)OVERLAP_F_B",
                                 "((0F1;3B0)OVERLAP_F_B"})
    CHECK_FALSE(parse_entry(text));
}

TEST_CASE("schedules are known by name in upper and lower case, and others refused with all names") {
  for (const auto& [kind, name] : choices(PipelineKind{})) CHECK(pipeline_kind(name) == kind);
  CHECK(pipeline_kind("interleaved1f1b") == kInterleaved1F1B);
  CHECK(pipeline_kind("GPIPE") == kGPipe);
  CHECK_THROWS_WITH(pipeline_kind("1F1"), Contains("parallelism.pipeline_parallel_schedule is \"1F1\"") &&
                                              Contains("GPipe, 1F1B, Looped"));
}

TEST_CASE("1F1B is the textbook's order and takes as long") {
  const PipelineSchedule schedule = make_schedule(k1F1B, {.ranks = 2, .microbatches = 4});
  CHECK(row(schedule.ranks[0]) == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3");
  CHECK(row(schedule.ranks[1]) == "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3");
  CHECK(simulate(schedule, uniform_costs(1, 2, 1, 1, 0)).start[0] ==
        std::vector<double>{0, 1, 4, 6, 7, 9, 10, 13});
}

TEST_CASE("an interleaved step runs when the drawn example says") {
  const PipelineSchedule schedule =
      make_schedule(kInterleaved1F1B, {.ranks = 2, .stages_per_rank = 2, .microbatches = 4});
  const PipelineTiming timing = simulate(schedule, uniform_costs(1, 2, 1, 1, 0));
  const auto timed = [&](int rank) {
    std::vector<std::string> entries;
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i)
      entries.push_back(fmt::format("{}@{}", to_text(schedule.ranks[rank][i]), timing.start[rank][i]));
    return fmt::format("{}", fmt::join(entries, " "));
  };
  CHECK(timed(0) ==
        "0F0@0 0F1@1 2F0@2 2F1@3 0F2@4 2B0@6 0F3@8 2B1@9 2F2@11 0B0@12 2F3@14 0B1@15 2B2@18 2B3@21 0B2@23 "
        "0B3@25");
  CHECK(timed(1) ==
        "1F0@1 1F1@2 3F0@3 3B0@4 3F1@6 3B1@7 1F2@9 1B0@10 1F3@12 1B1@13 3F2@15 3B2@16 3F3@18 3B3@19 1B2@21 "
        "1B3@23");
  CHECK(timing.seconds == 27);
  CHECK(timing.bubble == Approx(1.0 / 9));
  CHECK(max_microbatches_in_flight(schedule) == std::vector<int>{5, 3});
}

TEST_CASE("the last stage of a V is on the first rank") {
  const PipelineShape shape{.ranks = 3, .stages_per_rank = 2, .microbatches = 6};
  CHECK(make_schedule(kZbvZeroBubble, shape).rank_of_stage == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(make_schedule(kDualPipeV, shape).rank_of_stage == std::vector<int>{0, 1, 2, 2, 1, 0});
  CHECK(make_schedule(kLoopedBfs, shape).rank_of_stage == std::vector<int>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("the bubble of each schedule is its formula") {
  for (int p = 2; p <= 8; ++p) {
    for (int rounds = 2; rounds <= 4; ++rounds) {
      const int m = p * rounds;
      CAPTURE(p, m);
      const double hops = p - 1;
      CHECK(timing_of(kGPipe, {p, 1, m}).bubble == Approx(hops / (m + hops)));
      CHECK(timing_of(k1F1B, {p, 1, m}).bubble == Approx(hops / (m + hops)));
      for (int v = 2; v <= 4; ++v) {
        CHECK(timing_of(kLoopedBfs, {p, v, m}).bubble == Approx(hops / (v * m + hops)));
        CHECK(timing_of(kInterleaved1F1B, {p, v, m}).bubble == Approx(hops / (v * m + hops)));
        CHECK(timing_of(kInterleavedZeroBubble, {p, v, m}).bubble == Approx(hops / (3 * v * m + hops)));
      }
      CHECK(timing_of(kZbvZeroBubble, {p, 2, m}).bubble == Approx(hops / (6 * m + hops)));
      CHECK(timing_of(kDualPipeV, {p, 2, m}).bubble == Approx(hops / (6 * m + hops)));
    }
  }
}

TEST_CASE("the bubble of zero-bubble schedules grows where backwards run forwards once more") {
  const auto bubble = [](PipelineKind kind) {
    return simulate(make_schedule(kind, {4, 2, 16}), uniform_costs(1, 3, 2, 1, 0)).bubble;
  };
  CHECK(bubble(kInterleavedZeroBubble) == Approx(0.0448).margin(5e-5));
  CHECK(bubble(kZbvZeroBubble) == Approx(0.0448).margin(5e-5));
  CHECK(bubble(kDualPipeV) == Approx(0.0588).margin(5e-5));
}

TEST_CASE("each rank keeps as many microbatches as its schedule's formula says") {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 4 * p; ++m) {
      CAPTURE(p, m);
      const auto kept = [&](PipelineKind kind, int v) {
        return max_microbatches_in_flight(make_schedule(kind, {p, v, m}));
      };
      for (int r = 0; r < p; ++r) {
        CHECK(kept(kGPipe, 1)[r] == m);
        CHECK(kept(k1F1B, 1)[r] == std::min(m, p - r));
        CHECK(kept(kLoopedBfs, 3)[r] == 3 * m);
        if (m >= 2 * p) CHECK(kept(kDualPipeV, 2)[r] == 2 * p + 1);
        CHECK(kept(kZbvZeroBubble, 2)[r] <= std::min(2 * m, 2 * p));
        if (m >= 2 * p - 1) CHECK(kept(kZbvZeroBubble, 2)[r] == 2 * p);
        for (int v = 2; v <= 4 && m % p == 0; ++v) {
          CHECK(kept(kInterleaved1F1B, v)[r] == std::min(v * m, (v - 1) * p + 2 * (p - 1 - r) + 1));
          CHECK(kept(kInterleavedZeroBubble, v)[r] == std::min(v * m, v * p));
        }
      }
    }
  }
}

TEST_CASE("weight gradients wait on as many microbatches as their schedule divides backwards ahead of them") {
  const auto deferred = [](PipelineKind kind, int p, int v, int m) {
    const PipelineSchedule schedule = make_schedule(kind, {p, v, m});
    std::vector most(static_cast<size_t>(p), 0);
    for (int rank = 0; rank < p; ++rank) {
      int waiting = 0;
      for (const PipelineAction& action : schedule.ranks[static_cast<size_t>(rank)]) {
        waiting += (action.op == PipelineOp::kInputGradient) - (action.op == PipelineOp::kWeightGradient);
        most[static_cast<size_t>(rank)] = std::max(most[static_cast<size_t>(rank)], waiting);
      }
    }
    return most;
  };
  CHECK(deferred(kInterleaved1F1B, 4, 2, 8) == std::vector{0, 0, 0, 0});
  CHECK(deferred(kInterleavedZeroBubble, 4, 2, 8) == std::vector{1, 2, 3, 4});  // r + 1
  CHECK(deferred(kZbvZeroBubble, 4, 2, 8) == std::vector{1, 3, 5, 7});          // 2r + 1
}

TEST_CASE("a schedule spans gradient accumulation where it keeps no more for it") {
  for (const PipelineKind kind :
       {k1F1B, kInterleaved1F1B, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    const int v = kind == k1F1B ? 1 : 2;
    const PipelineSchedule all = make_schedule(kind, {4, v, 8, 3});
    CHECK(all.ranks == make_schedule(kind, {4, v, 24}).ranks);
    CHECK(all.microbatches == 24);
    CHECK(max_microbatches_in_flight(all) == max_microbatches_in_flight(make_schedule(kind, {4, v, 8})));
  }
  // Four microbatches of a batch make no round of eight, but those of two batches do.
  CHECK(make_schedule(kDualPipeV, {4, 2, 4, 2}).microbatches == 8);
  for (const PipelineKind kind : {kGPipe, kLoopedBfs}) {
    const int v = kind == kGPipe ? 1 : 2;
    const PipelineSchedule one = make_schedule(kind, {2, v, 3}), all = make_schedule(kind, {2, v, 3, 2});
    CHECK(max_microbatches_in_flight(all) == max_microbatches_in_flight(one));
    CHECK(all.microbatches == 6);
    CHECK(row(all.ranks[1]).starts_with(row(one.ranks[1])));
  }
  CHECK(row(make_schedule(kGPipe, {2, 1, 2, 2}).ranks[0]) == "0F0 0F1 0B0 0B1 0F2 0F3 0B2 0B3");
  // 14 microbatches make no three rounds on 4 ranks; those of each of two batches are one round.
  CHECK(make_schedule(kInterleaved1F1B, {4, 2, 7, 2}).microbatches == 14);
}

TEST_CASE("schedules that do not exist are refused with key and remedy") {
  const auto refused = [](PipelineKind kind, const PipelineShape& shape) {
    try {
      make_schedule(kind, shape);
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused(kDualPipeV, {4, 2, 7}), Contains("needs at least 8 microbatches") && Contains("has 7") &&
                                                 Contains("training.local_batch_size"));
  CHECK_THAT(refused(kInterleaved1F1B, {4, 2, 13}),
             Contains("13 microbatches do not divide into 3 rounds") && Contains("multiple of 4"));
  CHECK_THAT(refused(kInterleavedZeroBubble, {4, 2, 13}),
             Contains("\"InterleavedZeroBubble\": 13 microbatches"));
  CHECK_THAT(refused(kZbvZeroBubble, {4, 3, 8}),
             Contains("has two stages per rank, not 3") && Contains("pipeline_parallel_layers_per_stage"));
  CHECK_THAT(refused(k1F1B, {4, 2, 8}), Contains("has one stage per rank, not 2"));
  CHECK_THAT(refused(kLoopedBfs, {4, 1, 8}), Contains("has at least two stages per rank, not 1"));
  CHECK_THAT(
      refused(k1F1B, {4, 1, 2'000'000'000, 2'000'000'000}),
      Contains("has 4000000000000000000 microbatches") && Contains("pipeline_parallel_microbatch_size"));
  CHECK_THROWS_WITH(repeat(make_schedule(k1F1B, {2, 1, 8}), 2'000'000'000),
                    Contains("has 16000000000 microbatches"));
  CHECK_THAT(
      refused(k1F1B, {1000, 1, 1001}),
      Contains("has 1001 microbatches") && Contains("in 1000 stages, expected at most 1000000 together"));
  for (const PipelineKind kind : {kSingle, kMulti})
    CHECK_THAT(refused(kind, {4, 1, 8}), Contains("parallelism.pipeline_parallel_schedule_csv"));
}

}  // namespace hyperion::parallel
