#include "parallel/pipeline/lowering.h"

#include <algorithm>
#include <functional>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hyperion::parallel {
namespace {

using enum PipelineKind;
using enum PipelineOp;

const PipelineCosts kCosts = uniform_costs(1, 2, 1, 1, 0);

// Every schedule with up to 8 ranks, with some numbers of microbatches.
void for_every_schedule(const std::function<void(const PipelineSchedule&)>& check) {
  for (const auto& [kind, name] : choices(PipelineKind{})) {
    if (kind == kSingle || kind == kMulti) continue;
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int microbatches : {2 * ranks, 4 * ranks}) {
        for (int stages = 1; stages <= 5; stages += 2 - stages % 2) {
          if (!stages_per_rank(kind).allows(stages)) continue;
          CAPTURE(name, ranks, stages, microbatches);
          check(make_schedule(kind, {ranks, stages, microbatches}));
        }
      }
    }
  }
}

// Runs lists in which every action, computation or transfer, waits for all before it on its rank, and a
// transfer for its partner. Returns whether all end.
bool ends_where_everything_waits(const PipelineSchedule& schedule) {
  std::vector<size_t> next(schedule.ranks.size(), 0);
  const auto partner = [](PipelineAction action) {
    const bool forward = action.op == kSendForward || action.op == kReceiveForward;
    const bool to_next = action.op == kSendForward || action.op == kReceiveBackward;
    action.op = forward ? (action.op == kSendForward ? kReceiveForward : kSendForward)
                        : (action.op == kSendBackward ? kReceiveBackward : kSendBackward);
    action.stage += to_next ? 1 : -1;
    return action;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < next.size(); ++rank) {
      const auto& actions = schedule.ranks[rank];
      for (; next[rank] < actions.size(); progress = true, ++next[rank]) {
        const PipelineAction& action = actions[next[rank]];
        if (!is_transfer(action.op)) continue;
        const size_t peer = schedule.rank_of_stage[partner(action).stage];
        if (next[peer] == schedule.ranks[peer].size() || schedule.ranks[peer][next[peer]] != partner(action))
          break;
        ++next[peer];
      }
    }
  }
  for (size_t rank = 0; rank < next.size(); ++rank)
    if (next[rank] != schedule.ranks[rank].size()) return false;
  return true;
}

PipelineSchedule example() {
  return make_schedule(kInterleaved1F1B, {.ranks = 2, .stages_per_rank = 2, .microbatches = 4});
}

std::string problem_text(const PipelineSchedule& schedule) {
  const auto problem = find_problem(schedule);
  if (!problem) return "";
  return fmt::format("rank {}{}: {}", problem->rank,
                     problem->position ? fmt::format(" at {}", *problem->position) : "", problem->text);
}

}  // namespace

TEST_CASE("transfers have one order on all ranks, that in which their data exists") {
  const PipelineSchedule lowered = lower(example(), kCosts);
  std::vector<std::string> orders[2];
  for (int rank = 0; rank < 2; ++rank) {
    for (const PipelineAction& action : lowered.ranks[rank]) {
      if (!is_transfer(action.op)) continue;
      // Of a transfer, the computation that made its data.
      const bool forward = action.op == kSendForward || action.op == kReceiveForward;
      const int source = is_send(action.op) ? action.stage : action.stage + (forward ? -1 : 1);
      orders[rank].push_back(to_text({forward ? kForward : kBackward, source, action.microbatch}));
    }
  }
  CHECK(orders[0] == orders[1]);
  CHECK(fmt::format("{}", fmt::join(orders[0], " ")) ==
        "0F0 0F1 1F0 1F1 2F0 2F1 0F2 3B0 2B0 0F3 3B1 1F2 2B1 1B0 2F2 1F3 1B1 2F3 3B2 2B2 3B3 1B2 2B3 1B3");
}

TEST_CASE("a lowered list has gathers, frees, one reduction per stage, sends and receives") {
  const PipelineSchedule lowered = lower(make_schedule(k1F1B, {.ranks = 2, .microbatches = 2}), kCosts);
  CHECK(fmt::format("{}", fmt::join(to_entries(lowered.ranks[0]), " ")) ==
        "0UNSHARD 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0RESHARD 0REDUCE_GRAD");
  CHECK(fmt::format("{}", fmt::join(to_entries(lowered.ranks[1]), " ")) ==
        "1RECV_F0 1UNSHARD 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1RESHARD 1REDUCE_GRAD 1SEND_B1");
}

TEST_CASE("every schedule runs once lowered, even where everything waits for what comes before it") {
  for_every_schedule([](const PipelineSchedule& schedule) {
    REQUIRE(problem_text(schedule) == "");
    for (const PipelineCosts& costs : {kCosts, uniform_costs(1, 3, 2, 1, 0.2), uniform_costs(1, 2, 1, 1, 5),
                                       uniform_costs(0, 1, 0, 1, 0)}) {
      const PipelineSchedule lowered = lower(schedule, costs);
      REQUIRE(problem_text(lowered) == "");
      REQUIRE(ends_where_everything_waits(lowered));
    }
  });
}

TEST_CASE("one in-order stream for transfers costs no time where the costs are right") {
  for_every_schedule([](const PipelineSchedule& schedule) {
    const double free = simulate(schedule, kCosts).seconds;
    CHECK(simulate(lower(schedule, kCosts), kCosts, TransferStreams::kOne).seconds == Approx(free));
  });
}

TEST_CASE("streams of their own for the two directions never wait for each other and never cost time") {
  const PipelineCosts wrong = [](const PipelineAction& action) {
    return kCosts(action) * (0.8 + 0.05 * ((action.stage * 5 + action.microbatch * 3) % 9));
  };
  for_every_schedule([&](const PipelineSchedule& schedule) {
    const PipelineSchedule lowered = lower(schedule, kCosts);
    const PipelineTiming one = simulate(lowered, wrong, TransferStreams::kOne),
                         two = simulate(lowered, wrong, TransferStreams::kPerDirection);
    REQUIRE_FALSE(two.deadlock);
    CHECK(two.seconds <= one.seconds * (1 + 1e-12));
  });
  // Gradients and activations share no stream even where stages have a rank each.
  const PipelineSchedule lowered = lower(make_schedule(k1F1B, {4, 1, 16}), kCosts);
  const auto seconds = [&](TransferStreams streams) {
    const PipelineCosts late = [](const PipelineAction& action) {
      return uniform_costs(1, 2, 1, 1, 0.8)(action) * (action.stage % 2 == 0 ? 1.3 : 0.7);
    };
    return simulate(lowered, late, streams).seconds;
  };
  CHECK(seconds(TransferStreams::kPerDirection) < 0.99 * seconds(TransferStreams::kOne));
}

TEST_CASE("up to three stages stay gathered for the step, and of more one is freed for the next") {
  for (int stages = 2; stages <= 6; ++stages) {
    const PipelineSchedule lowered = lower(make_schedule(kInterleaved1F1B, {2, stages, 8}), kCosts);
    const auto count = [&](PipelineOp op) {
      return std::ranges::count(lowered.ranks[0], op, &PipelineAction::op);
    };
    CAPTURE(stages);
    CHECK(count(kUnshard) == count(kReshard));
    CHECK(count(kReduce) == stages);
    int gathered = 0, most = 0;
    for (const PipelineAction& action : lowered.ranks[0])
      most = std::max(most, gathered += (action.op == kUnshard) - (action.op == kReshard));
    CHECK(most == std::min(stages, 3));
    if (stages <= 3) {
      CHECK(count(kUnshard) == stages);
    } else {
      CHECK(count(kUnshard) > stages);
    }
  }
}

TEST_CASE("a transfer of the wrong order is found, as is a wait of two ranks for each other") {
  PipelineSchedule waiting = make_schedule(k1F1B, {.ranks = 2, .microbatches = 2});
  std::swap(waiting.ranks[0][1],
            waiting.ranks[0][2]);  // 0B0 before 0F1, while rank 1 wants both forwards first
  std::swap(waiting.ranks[1][1], waiting.ranks[1][2]);
  CHECK(problem_text(waiting) ==
        "rank 0 at 1: the action is never reached: 0B0 waits for the backward of stage 1 on microbatch 0, "
        "which rank 1 runs after 1F1, where 1F1 waits for the forward of stage 0 on microbatch 1, which "
        "rank 0 runs after 0B0");

  PipelineSchedule crossed = lower(make_schedule(k1F1B, {.ranks = 2, .microbatches = 2}), kCosts);
  auto& actions = crossed.ranks[1];
  const auto first = std::ranges::find(actions, PipelineAction{kReceiveForward, 1, 1});
  const auto second = std::ranges::find(actions, PipelineAction{kSendBackward, 1, 0});
  std::iter_swap(first, second);  // sends before it computes
  CHECK(problem_text(crossed).find("1SEND_B0 comes before 1I0") != std::string::npos);
}

TEST_CASE("lists that cannot be a step are found with rank and position") {
  const auto changed = [](const std::function<void(PipelineSchedule&)>& change) {
    PipelineSchedule schedule = make_schedule(kInterleavedZeroBubble, {2, 2, 2});
    change(schedule);
    return problem_text(schedule);
  };
  const PipelineSchedule plain = make_schedule(kInterleavedZeroBubble, {2, 2, 2});
  REQUIRE(fmt::format("{}", fmt::join(to_entries(plain.ranks[1]), " ")) ==
          "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1");
  CHECK(changed([](auto&) {}) == "");
  CHECK(changed([](auto& s) { s.ranks[1].pop_back(); }) == "rank 1: 1W1 is missing");
  CHECK(changed([](auto& s) { s.ranks[1][3] = s.ranks[1][2]; }) == "rank 1 at 3: 3F0 is there twice");
  CHECK(changed([](auto& s) { std::swap(s.ranks[1][2], s.ranks[1][3]); }) ==
        "rank 1 at 2: 3I0 comes before 3F0");
  CHECK(changed([](auto& s) { std::swap(s.ranks[1][7], s.ranks[1][10]); }) ==
        "rank 1 at 7: 1W0 comes before 1I0");
  CHECK(changed([](auto& s) {
          s.ranks[1][6] = {kBackward, 3, 0};
        }) == "rank 1 at 6: 3B0 and 3I0 are the same backward");
  CHECK(changed([](auto& s) { s.ranks[1][0].stage = 0; }) ==
        "rank 1 at 0: 0F0: stage 0 is on rank 0, and a stage is on one rank");
  CHECK(changed([](auto& s) { s.ranks[1][0].stage = 9; }) ==
        "rank 1 at 0: 9F0: there is no stage 9, the last one is 3");
  CHECK(changed([](auto& s) { s.ranks[1][0].microbatch = 2; }) ==
        "rank 1 at 0: 1F2: there is no microbatch 2, the last one is 1");

  // What lowering adds is looked at too.
  const PipelineSchedule lowered = lower(plain, kCosts);
  const auto without = [&](PipelineOp op) {
    PipelineSchedule schedule = lowered;
    schedule.ranks[1].erase(std::ranges::find(schedule.ranks[1], op, &PipelineAction::op));
    return problem_text(schedule);
  };
  CHECK(without(kUnshard) == "rank 1 at 2: 1F0 comes before 1UNSHARD");
  CHECK(without(kReduce).find("REDUCE_GRAD is missing") != std::string::npos);
  CHECK(without(kReceiveForward) == "rank 1 at 2: 1F0 comes before 1RECV_F0");
  CHECK(without(kSendForward).find("never reached") != std::string::npos);
}

}  // namespace hyperion::parallel
