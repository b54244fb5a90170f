#include "parallel/pipeline/lowering.h"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace hyperion::parallel {
namespace {

using enum PipelineOp;

// The send and the receive of an action's result.
struct Transfer {
  PipelineAction send, receive;
};

// The transfer of an action's result; nullopt if no other rank consumes it.
std::optional<Transfer> transfer_of(const PipelineSchedule& schedule, const PipelineAction& action) {
  if (!is_compute(action.op) || action.op == kWeightGradient) return {};
  const bool forward = action.op == kForward;
  const int consumer = forward ? action.stage + 1 : action.stage - 1;
  if (consumer < 0 || consumer == schedule.stages() ||
      schedule.rank_of_stage[consumer] == schedule.rank_of_stage[action.stage])
    return {};
  return Transfer{{forward ? kSendForward : kSendBackward, action.stage, action.microbatch},
                  {forward ? kReceiveForward : kReceiveBackward, consumer, action.microbatch}};
}

bool uses_weights(const PipelineAction& action) {
  return is_compute(action.op) && action.op != kWeightGradient;
}

// Appends a rank's compute actions to `list` with unshards, reshards and reductions; `before(i)` is called
// before anything of action i is appended.
void append_with_weights(const std::vector<PipelineAction>& compute, const auto& before,
                         std::vector<PipelineAction>& list) {
  struct Uses {
    int stage;
    std::deque<size_t> positions;  // actions that use its weights, from the current one on
    size_t last_gradient;
  };
  std::vector<Uses> stages;
  const auto uses_of = [&](int stage) {
    const auto uses = std::ranges::find(stages, stage, &Uses::stage);
    return uses != stages.end() ? uses : stages.insert(uses, {stage, {}, compute.size()});
  };
  for (size_t i = 0; i < compute.size(); ++i) {
    const auto uses = uses_of(compute[i].stage);
    if (uses_weights(compute[i])) uses->positions.push_back(i);
    if (compute[i].op != kForward) uses->last_gradient = i;
  }
  // The stages that the list uses next, in that order.
  const auto next_stages = [&] {
    std::vector<std::pair<size_t, int>> next;
    for (const Uses& uses : stages)
      if (!uses.positions.empty()) next.emplace_back(uses.positions.front(), uses.stage);
    std::ranges::sort(next);
    if (next.size() > kMaxGatheredStages) next.resize(kMaxGatheredStages);
    return next;
  };
  auto next = next_stages();
  std::vector<int> gathered;
  for (size_t i = 0; i < compute.size(); ++i) {
    before(i);
    for (const auto& [position, stage] : next) {
      if (std::ranges::count(gathered, stage) > 0) continue;
      list.push_back({kUnshard, stage});
      gathered.push_back(stage);
    }
    list.push_back({compute[i].op, compute[i].stage, compute[i].microbatch});
    const auto uses = uses_of(compute[i].stage);
    if (uses_weights(compute[i])) {
      uses->positions.pop_front();
      next = next_stages();
      std::erase_if(gathered, [&](int stage) {
        if (std::ranges::count(next, stage, &std::pair<size_t, int>::second) > 0) return false;
        list.push_back({kReshard, stage});
        return true;
      });
    }
    if (uses->last_gradient == i) list.push_back({kReduce, compute[i].stage});
  }
}

// The ops of a stage's microbatch that were seen, one bit each.
using Ops = uint32_t;
constexpr Ops bit(PipelineOp op) {
  return Ops{1} << static_cast<int>(op);
}

class ProblemSearch {
 public:
  explicit ProblemSearch(const PipelineSchedule& schedule)
      : schedule_(schedule),
        met_(static_cast<size_t>(schedule.stages()) * schedule.microbatches, 0),
        reduced_(schedule.stages(), false) {
    for (const auto& actions : schedule.ranks)
      for (const PipelineAction& action : actions) lowered_ |= !is_compute(action.op);
  }

  std::optional<PipelineProblem> first() {
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      gathered_.clear();
      for (size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        const PipelineAction& action = schedule_.ranks[rank][i];
        if (const std::string text = problem_of(static_cast<int>(rank), action); !text.empty())
          return PipelineProblem{static_cast<int>(rank), i, to_text(action) + text};
      }
    }
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const int rank = schedule_.rank_of_stage[stage];
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const std::string missing = missing_of(stage, microbatch);
        if (!missing.empty()) return PipelineProblem{rank, {}, missing + " is missing"};
      }
      if (lowered_ && !reduced_[stage])
        return PipelineProblem{rank, {}, to_text({kReduce, stage}) + " is missing"};
    }
    const PipelineTiming timing = simulate(schedule_, uniform_costs(1, 2, 1, 1, 0),
                                           lowered_ ? TransferStreams::kOne : TransferStreams::kUnlimited);
    if (timing.deadlock)
      return PipelineProblem{timing.deadlock->rank, timing.deadlock->position,
                             "the action is never reached: " + timing.deadlock->reason};
    return {};
  }

 private:
  Ops& met(const PipelineAction& action) {
    return met_[static_cast<size_t>(action.stage) * schedule_.microbatches + action.microbatch];
  }

  // The problem of `rank`'s next action, as text after its name; empty if there is none.
  std::string problem_of(int rank, const PipelineAction& action) {
    if (action.stage >= schedule_.stages())
      return fmt::format(": there is no stage {}, the last one is {}", action.stage, schedule_.stages() - 1);
    if (schedule_.rank_of_stage[action.stage] != rank)
      return fmt::format(": stage {} is on rank {}, and a stage is on one rank", action.stage,
                         schedule_.rank_of_stage[action.stage]);
    if (!is_compute(action.op) && !is_transfer(action.op)) return weights_problem_of(action);
    if (action.microbatch >= schedule_.microbatches)
      return fmt::format(": there is no microbatch {}, the last one is {}", action.microbatch,
                         schedule_.microbatches - 1);
    const Ops before = met(action);
    if ((before & bit(action.op)) != 0) return " is there twice";
    met(action) |= bit(action.op);
    const auto needs = [&](PipelineOp op) {
      return (before & bit(op)) != 0 ? "" : fmt::format(" comes before {}", other(action, op));
    };
    const bool backward = action.op == kBackward || action.op == kInputGradient;
    if (backward && (before & (bit(kBackward) | bit(kInputGradient))) != 0)
      return fmt::format(" and {} are the same backward",
                         other(action, action.op == kBackward ? kInputGradient : kBackward));
    if (action.op == kWeightGradient) return needs(kInputGradient);
    if (action.op == kSendForward) return needs(kForward);
    if (action.op == kSendBackward)
      return (before & bit(kBackward)) != 0 ? std::string() : needs(kInputGradient);
    if (backward && (before & bit(kForward)) == 0) return needs(kForward);
    if (!lowered_ || !is_compute(action.op)) return {};
    if (gathered_.count(action.stage) == 0)
      return fmt::format(" comes before {}", to_text({kUnshard, action.stage}));
    return reads_from_other_rank(action) ? needs(action.op == kForward ? kReceiveForward : kReceiveBackward)
                                         : std::string();
  }

  std::string weights_problem_of(const PipelineAction& action) {
    if (action.op == kReshard) return gathered_.erase(action.stage) == 1 ? "" : " frees what is not gathered";
    if (action.op == kReduce) {
      if (reduced_[action.stage]) return " is there twice";
      reduced_[action.stage] = true;
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const std::string missing = missing_of(action.stage, microbatch);
        if (!missing.empty()) return fmt::format(" comes before {}", missing);
      }
      return {};
    }
    if (!gathered_.insert(action.stage).second) return " is there twice without a free between them";
    return gathered_.size() <= kMaxGatheredStages
               ? std::string()
               : fmt::format(": more than {} stages are gathered", kMaxGatheredStages);
  }

  static std::string other(const PipelineAction& action, PipelineOp op) {
    return to_text({op, action.stage, action.microbatch});
  }

  bool reads_from_other_rank(const PipelineAction& action) const {
    const int source = action.op == kForward ? action.stage - 1 : action.stage + 1;
    return source >= 0 && source < schedule_.stages() &&
           schedule_.rank_of_stage[source] != schedule_.rank_of_stage[action.stage];
  }

  // A compute action of a stage's microbatch that was not seen; empty if all were.
  std::string missing_of(int stage, int microbatch) {
    const PipelineAction forward{kForward, stage, microbatch};
    const Ops ops = met(forward);
    if ((ops & bit(kForward)) == 0) return to_text(forward);
    if ((ops & (bit(kBackward) | bit(kInputGradient))) == 0) return other(forward, kBackward);
    const bool has_wgrad = (ops & (bit(kBackward) | bit(kWeightGradient))) != 0;
    return has_wgrad ? std::string() : other(forward, kWeightGradient);
  }

  const PipelineSchedule& schedule_;
  bool lowered_ = false;
  std::vector<Ops> met_;  // by stage and microbatch
  std::vector<bool> reduced_;
  std::set<int> gathered_;
};

}  // namespace

PipelineSchedule lower(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  // If an action cost nothing, its data would exist when it starts, and order against transfers would be
  // ambiguous.
  const PipelineCosts positive = [&](const PipelineAction& action) {
    return is_compute(action.op) ? std::max(costs(action), 1e-9) : costs(action);
  };
  const PipelineTiming timing = simulate(schedule, positive);
  std::vector<std::tuple<double, int, PipelineOp, int, Transfer>> transfers;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const PipelineAction& action = schedule.ranks[rank][i];
      if (const auto transfer = transfer_of(schedule, action))
        transfers.emplace_back(timing.end[rank][i], action.stage, transfer->send.op, action.microbatch,
                               *transfer);
    }
  }
  std::ranges::sort(transfers, {}, [](const auto& transfer) {
    const auto& [time, stage, op, microbatch, actions] = transfer;
    return std::tuple(time, stage, op, microbatch);
  });

  struct Timed {
    double time;
    PipelineAction action;
  };
  std::vector<std::deque<Timed>> transfers_of_rank(schedule.ranks.size());
  for (const auto& [time, stage, op, microbatch, transfer] : transfers) {
    transfers_of_rank[schedule.rank_of_stage[transfer.send.stage]].push_back({time, transfer.send});
    transfers_of_rank[schedule.rank_of_stage[transfer.receive.stage]].push_back({time, transfer.receive});
  }
  PipelineSchedule lowered{schedule.microbatches, schedule.rank_of_stage, {}};
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<PipelineAction>& list = lowered.ranks.emplace_back();
    const auto add_until = [&](double time) {
      for (auto& queue = transfers_of_rank[rank]; !queue.empty() && queue.front().time <= time;
           queue.pop_front())
        list.push_back(queue.front().action);
    };
    append_with_weights(
        schedule.ranks[rank], [&](size_t i) { add_until(timing.start[rank][i]); }, list);
    add_until(timing.seconds);
  }
  return lowered;
}

std::optional<PipelineProblem> find_problem(const PipelineSchedule& schedule) {
  return ProblemSearch(schedule).first();
}

}  // namespace hyperion::parallel
