#include "parallel/pipeline/simulation.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>

#include <fmt/format.h>

namespace hyperion::parallel {
namespace {

using enum PipelineOp;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The queue of its rank in which a transfer runs.
int stream_of(const PipelineSchedule& schedule, const PipelineAction& action, TransferStreams streams) {
  const bool forward = action.op == kSendForward || action.op == kReceiveForward;
  if (streams == TransferStreams::kPerOp) return forward ? 0 : 1;
  if (streams != TransferStreams::kPerDirection) return 0;
  const int first =
      action.op == kSendForward || action.op == kReceiveBackward ? action.stage : action.stage - 1;
  // Activations go from stage `first` to the next one, gradients the other way.
  const bool up = schedule.rank_of_stage[first] < schedule.rank_of_stage[first + 1];
  return up == forward ? 0 : 1;
}

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineCosts& costs, TransferStreams streams)
      : schedule_(schedule),
        costs_(costs),
        streams_(streams),
        forward_(static_cast<size_t>(schedule.stages()) * schedule.microbatches),
        backward_(forward_),
        next_(schedule.ranks.size(), 0),
        free_(schedule.ranks.size(), 0.0),
        queues_(schedule.ranks.size() * 2) {
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const auto& actions = schedule.ranks[rank];
      timing_.start.emplace_back(actions.size(), kNever);
      timing_.end.emplace_back(actions.size(), kNever);
      for (size_t i = 0; i < actions.size() && streams != TransferStreams::kUnlimited; ++i)
        if (is_transfer(actions[i].op)) queue_of(rank, actions[i]).positions.push_back(i);
    }
  }

  PipelineTiming run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
        while (compute(rank)) progress = true;
        for (size_t queue = 2 * rank; queue < 2 * rank + 2; ++queue)
          while (send(rank, queues_[queue])) progress = true;
      }
    }
    double busy = 0;
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      for (size_t i = 0; i < schedule_.ranks[rank].size(); ++i) {
        if (timing_.end[rank][i] == kNever) continue;
        timing_.seconds = std::max(timing_.seconds, timing_.end[rank][i]);
        if (is_compute(schedule_.ranks[rank][i].op)) busy += timing_.end[rank][i] - timing_.start[rank][i];
      }
      if (!timing_.deadlock && next_[rank] < schedule_.ranks[rank].size()) set_deadlock(rank);
    }
    if (timing_.seconds > 0)
      timing_.bubble = 1 - busy / (timing_.seconds * static_cast<double>(schedule_.ranks.size()));
    return std::move(timing_);
  }

 private:
  struct Queue {
    std::deque<size_t> positions;  // incomplete transfers, as positions in the rank's list
    double free = 0;               // end of the last transfer
  };
  // When a stage's forward or backward of a microbatch has finished, and when the consuming stage has its
  // result.
  struct Result {
    double finished = kNever, available = kNever;
  };

  Result& result(PipelineOp op, int stage, int microbatch) {
    return (op == kForward ? forward_
                           : backward_)[static_cast<size_t>(stage) * schedule_.microbatches + microbatch];
  }
  Queue& queue_of(size_t rank, const PipelineAction& action) {
    return queues_[2 * rank + stream_of(schedule_, action, streams_)];
  }

  // The action of another stage whose result `action` needs, if any.
  std::optional<PipelineAction> input_of(const PipelineAction& action) const {
    if (action.op == kForward && action.stage > 0)
      return PipelineAction{kForward, action.stage - 1, action.microbatch};
    if ((action.op == kBackward || action.op == kInputGradient) && action.stage + 1 < schedule_.stages())
      return PipelineAction{kBackward, action.stage + 1, action.microbatch};
    return {};
  }

  // Runs the rank's next action that is not a transfer, if the time of its input is known.
  bool compute(size_t rank) {
    const auto& actions = schedule_.ranks[rank];
    size_t& next = next_[rank];
    while (next < actions.size() && is_transfer(actions[next].op)) ++next;
    if (next == actions.size()) return false;
    const PipelineAction& action = actions[next];
    double start = free_[rank];
    if (const auto input = input_of(action)) {
      const double available = result(input->op, input->stage, input->microbatch).available;
      if (available == kNever) return false;
      start = std::max(start, available);
    }
    const double end = start + (is_compute(action.op) ? costs_(action) : 0);
    timing_.start[rank][next] = start;
    timing_.end[rank][next] = free_[rank] = end;
    ++next;
    if (action.op == kForward || action.op == kBackward || action.op == kInputGradient) {
      Result& output = result(action.op, action.stage, action.microbatch);
      output.finished = end;
      const int consumer = action.op == kForward ? action.stage + 1 : action.stage - 1;
      if (consumer < 0 || consumer == schedule_.stages()) return true;
      if (schedule_.rank_of_stage[consumer] == static_cast<int>(rank)) {
        output.available = end;
      } else if (streams_ == TransferStreams::kUnlimited) {
        output.available = end + costs_({action.op == kForward ? kSendForward : kSendBackward, action.stage,
                                         action.microbatch});
      }
    }
    return true;
  }

  // Runs the send at the front of the rank's queue, if its data exists and its receive is at the front too.
  bool send(size_t rank, Queue& queue) {
    if (queue.positions.empty()) return false;
    const size_t position = queue.positions.front();
    const PipelineAction action = schedule_.ranks[rank][position];
    if (!is_send(action.op)) return false;
    const bool forward = action.op == kSendForward;
    Result& data = result(forward ? kForward : kBackward, action.stage, action.microbatch);
    if (data.finished == kNever) return false;
    const PipelineAction receive{forward ? kReceiveForward : kReceiveBackward,
                                 forward ? action.stage + 1 : action.stage - 1, action.microbatch};
    const size_t peer = schedule_.rank_of_stage[receive.stage];
    Queue& peer_queue = queue_of(peer, receive);
    if (peer_queue.positions.empty()) return false;
    const size_t peer_position = peer_queue.positions.front();
    if (schedule_.ranks[peer][peer_position] != receive) return false;
    const double start = std::max({data.finished, queue.free, peer_queue.free});
    const double end = start + costs_(action);
    data.available = queue.free = peer_queue.free = end;
    timing_.start[rank][position] = timing_.start[peer][peer_position] = start;
    timing_.end[rank][position] = timing_.end[peer][peer_position] = end;
    queue.positions.pop_front();
    peer_queue.positions.pop_front();
    return true;
  }

  // Follows the waits from rank to rank until one repeats.
  void set_deadlock(size_t rank) {
    timing_.deadlock = {static_cast<int>(rank), next_[rank], {}};
    std::string& reason = timing_.deadlock->reason;
    std::set<size_t> seen;
    while (seen.insert(rank).second && next_[rank] < schedule_.ranks[rank].size()) {
      const PipelineAction& action = schedule_.ranks[rank][next_[rank]];
      const auto input = input_of(action);
      if (!input) break;
      const size_t peer = schedule_.rank_of_stage[input->stage];
      const auto& actions = schedule_.ranks[peer];
      const bool is_finished = result(input->op, input->stage, input->microbatch).finished != kNever;
      reason += fmt::format(
          "{}{} waits for {} of stage {} on microbatch {}", reason.empty() ? "" : ", where ", to_text(action),
          input->op == kForward ? "the forward" : "the backward", input->stage, input->microbatch);
      if (is_finished) {
        reason += ", which is never sent: the transfers of both ranks have other orders";
        break;
      }
      if (next_[peer] < actions.size())
        reason += fmt::format(", which rank {} runs after {}", peer, to_text(actions[next_[peer]]));
      rank = peer;
    }
  }

  const PipelineSchedule& schedule_;
  const PipelineCosts& costs_;
  const TransferStreams streams_;
  std::vector<Result> forward_, backward_;  // by stage and microbatch
  std::vector<size_t> next_;                // by rank: position of the next action
  std::vector<double> free_;                // by rank: end of its previous computation
  std::vector<Queue> queues_;               // two for each rank
  PipelineTiming timing_;
};

}  // namespace

PipelineCosts uniform_costs(double forward, double backward, double input_gradient, double weight_gradient,
                            double transfer) {
  return [=](const PipelineAction& action) {
    switch (action.op) {
      case kForward:
        return forward;
      case kBackward:
        return backward;
      case kInputGradient:
        return input_gradient;
      case kWeightGradient:
        return weight_gradient;
      default:
        return transfer;
    }
  };
}

PipelineCosts planned_costs(bool recomputes) {
  const double forward = recomputes ? 1 : 0;
  return uniform_costs(1, 2 + forward, 1 + forward, 1, 0.05);
}

PipelineTiming simulate(const PipelineSchedule& schedule, const PipelineCosts& costs,
                        TransferStreams streams) {
  return Simulation(schedule, costs, streams).run();
}

}  // namespace hyperion::parallel
