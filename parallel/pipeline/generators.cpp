// Builds the order of each schedule: GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2019), breadth-first
// (Lamy-Poirier 2023), interleaved 1F1B (Narayanan et al. 2021), zero bubble and its V (Qi et al. 2023,
// 2024), and DualPipeV (DeepSeek 2025). Where the papers leave a choice, it follows PyTorch, whose lists
// these equal.
#include <algorithm>
#include <deque>
#include <optional>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {
namespace {

using enum PipelineOp;

// Builds a rank's list. Each stage takes its microbatches in order; those from `microbatches` on are
// counted but left out.
class RankList {
 public:
  RankList(int stages, int microbatches)
      : microbatches_(microbatches), forwards_(stages, 0), backwards_(stages, 0) {}

  void forward(int stage) { append({kForward, stage, forwards_[stage]++}); }
  // `op` is kBackward, or kInputGradient, after which the stage's wgrad is pending.
  void backward(int stage, PipelineOp op = kBackward) {
    if (op == kInputGradient) pending_.push_back({kWeightGradient, stage, backwards_[stage]});
    append({op, stage, backwards_[stage]++});
  }
  void overlapped(int forward_stage, int backward_stage) {
    forward(forward_stage);
    actions_.back().overlaps_next = true;
    backward(backward_stage);
  }
  // Appends the oldest pending wgrad, of any stage or of `stage`, if there is one.
  void weight_gradient(std::optional<int> stage = {}) {
    const auto oldest = std::ranges::find_if(
        pending_, [&](const PipelineAction& action) { return !stage || action.stage == *stage; });
    if (oldest == pending_.end()) return;
    append(*oldest);
    pending_.erase(oldest);
  }
  void all_weight_gradients(std::optional<int> stage = {}) {
    for (size_t i = pending_.size(); i > 0; --i) weight_gradient(stage);
  }

  int forwards(int stage) const { return forwards_[stage]; }
  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  void append(const PipelineAction& action) {
    if (action.microbatch < microbatches_) actions_.push_back(action);
  }

  int microbatches_;
  std::vector<int> forwards_, backwards_;  // number in the list, by stage
  std::vector<PipelineAction> actions_;
  std::deque<PipelineAction> pending_;
};

// Runs all forwards, then all backwards, stage after stage. LoopedBFS runs the backwards in reverse order.
std::vector<PipelineAction> breadth_first(int rank, const PipelineShape& shape, bool reversed) {
  std::vector<PipelineAction> actions;
  for (int stage = rank; stage < shape.ranks * shape.stages_per_rank; stage += shape.ranks)
    for (int m = 0; m < shape.microbatches; ++m) actions.push_back({kForward, stage, m});
  for (int local = shape.stages_per_rank - 1; local >= 0; --local) {
    for (int m = 0; m < shape.microbatches; ++m) {
      actions.push_back({kBackward, local * shape.ranks + rank, reversed ? shape.microbatches - 1 - m : m});
    }
  }
  return actions;
}

// Warms up with one forward per later rank, then alternates forward and backward.
std::vector<PipelineAction> one_forward_one_backward(int rank, int ranks, int microbatches) {
  RankList list(ranks, microbatches);
  const int warm_up = std::min(microbatches, ranks - 1 - rank);
  for (int i = 0; i < warm_up; ++i) list.forward(rank);
  for (int i = warm_up; i < microbatches; ++i) {
    list.forward(rank);
    list.backward(rank);
  }
  for (int i = 0; i < warm_up; ++i) list.backward(rank);
  return list.take();
}

// A round is `round` microbatches of each local stage in turn: forwards from the first stage on, backwards
// from the last. With `zero_bubble` a backward is a dgrad, and its wgrad follows r dgrads later on rank r,
// where it fills the bubble at the end.
std::vector<PipelineAction> interleaved(int rank, const PipelineShape& shape, int microbatches, int round,
                                        bool zero_bubble) {
  const int local_stages = shape.stages_per_rank, total = local_stages * microbatches;
  const int hops = shape.ranks - 1 - rank;
  const int warm_up = std::min((local_stages - 1) * round + (zero_bubble ? 1 : 2) * hops, total);
  RankList list(shape.ranks * local_stages, microbatches);
  const auto forward = [&](int i) { list.forward(i / round % local_stages * shape.ranks + rank); };
  const auto backward = [&](int i) {
    list.backward((local_stages - 1 - i / round % local_stages) * shape.ranks + rank,
                  zero_bubble ? kInputGradient : kBackward);
    if (i >= rank) list.weight_gradient();  // none is pending after a full backward
  };
  for (int i = 0; i < warm_up; ++i) forward(i);
  for (int i = 0; i < total; ++i) {
    if (warm_up + i < total) forward(warm_up + i);
    backward(i);
  }
  list.all_weight_gradients();
  return list.take();
}

// Each rank has two stages, `down` on the way to the last rank and `up` on the way back. The order is built
// for at least 2 ranks - 1 microbatches, which fill the pipeline; those beyond `microbatches` are left out.
std::vector<PipelineAction> zero_bubble_v(int rank, int ranks, int microbatches) {
  const int down = rank, up = 2 * ranks - 1 - rank, count = std::max(2 * ranks - 1, microbatches);
  RankList list(2 * ranks, microbatches);
  const auto backward_with_weights = [&](int stage) {
    list.backward(stage, kInputGradient);
    list.weight_gradient(stage);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) list.forward(down);
  for (int i = 0; i < rank; ++i) {
    list.forward(up);
    list.forward(down);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    list.forward(up);
    backward_with_weights(up);
  }
  while (list.forwards(up) < count) {
    if (list.forwards(down) < count) list.forward(down);
    backward_with_weights(down);
    list.forward(up);
    backward_with_weights(up);
  }
  for (int i = 0; i < rank; ++i) {
    list.backward(down, kInputGradient);
    list.backward(up, kInputGradient);
  }
  for (int i = 0; i < ranks - rank; ++i) backward_with_weights(down);
  list.all_weight_gradients(up);
  list.all_weight_gradients(down);
  return list.take();
}

// Follows DeepSeek's eight steps, with two stages per rank as above.
std::vector<PipelineAction> dual_pipe_v(int rank, int ranks, int microbatches) {
  const int down = rank, up = 2 * ranks - 1 - rank, hops = ranks - 1 - rank;
  RankList list(2 * ranks, microbatches);
  for (int i = 0; i < 2 * hops; ++i) list.forward(down);
  for (int i = 0; i <= rank; ++i) {
    list.forward(down);
    list.forward(up);
  }
  for (int i = 0; i < hops; ++i) {
    list.backward(up, kInputGradient);
    list.weight_gradient();
    list.forward(up);
  }
  for (int i = 0; i <= microbatches - 2 * ranks + rank; ++i) {
    if (i == 0 && hops == 0) {  // the first pair of the last rank, where overlapping would cost a bubble
      list.forward(down);
      list.backward(up);
    } else {
      list.overlapped(down, up);
    }
    list.overlapped(up, down);
  }
  for (int i = 0; i < hops; ++i) {
    list.backward(up);
    list.overlapped(up, down);
  }
  // The second half of the remaining backwards is split into dgrad and wgrad, which leaves wgrads for the
  // end.
  for (int i = 0; i < 2 * (rank + 1); ++i)
    list.backward(i % 2 == 0 ? up : down, i > rank ? kInputGradient : kBackward);
  for (int i = 0; i < hops; ++i) {
    list.weight_gradient();
    list.backward(down, kInputGradient);
  }
  list.all_weight_gradients();
  return list.take();
}

// The number of microbatches an interleaved schedule runs through a stage before it turns to the next one;
// nullopt if the microbatches do not divide into such rounds. If those of all batches do not divide, each
// batch has rounds of its own.
std::optional<int> microbatches_per_round(const PipelineShape& shape) {
  for (const int microbatches : {shape.microbatches * shape.batches, shape.microbatches}) {
    const int rounds = std::max(1, microbatches / shape.ranks);
    if (microbatches % rounds == 0) return microbatches / rounds;
  }
  return {};
}

}  // namespace

std::vector<int> ranks_of_stages(PipelineKind kind, int ranks, int stages_per_rank) {
  const bool v_shaped = kind == PipelineKind::kZbvZeroBubble || kind == PipelineKind::kDualPipeV;
  std::vector<int> rank_of_stage;
  for (int stage = 0; stage < ranks * stages_per_rank; ++stage)
    rank_of_stage.push_back(v_shaped && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks);
  return rank_of_stage;
}

PipelineSchedule make_schedule(PipelineKind kind, const PipelineShape& shape) {
  const int ranks = shape.ranks,
            total = microbatches_of_step(shape.microbatches, shape.batches, ranks * shape.stages_per_rank);
  const StagesPerRank allowed = stages_per_rank(kind);
  if (kind == PipelineKind::kSingle || kind == PipelineKind::kMulti) {
    throw_config(
        "parallelism.pipeline_parallel_schedule = \"{}\" is a schedule from a file: name it in "
        "parallelism.pipeline_parallel_schedule_csv, or choose another schedule",
        text_of(kind));
  }
  if (!allowed.allows(shape.stages_per_rank)) {
    throw_config(
        "parallelism.pipeline_parallel_schedule = \"{}\" has {} per rank, not {}: set "
        "parallelism.pipeline_parallel_layers_per_stage (or module_fqns_per_model_part) accordingly, or "
        "choose another schedule",
        text_of(kind),
        allowed.max == 1   ? "one stage"
        : allowed.max == 2 ? "two stages"
                           : "at least two stages",
        shape.stages_per_rank);
  }
  if (kind == PipelineKind::kDualPipeV && total < 2 * ranks) {
    throw_config(
        "parallelism.pipeline_parallel_schedule = \"DualPipeV\" needs at least {} microbatches in a step, "
        "twice the {} of pipeline_parallel_degree, and has {}: raise training.local_batch_size or "
        "training.global_batch_size, lower pipeline_parallel_microbatch_size, or choose another schedule",
        2 * ranks, ranks, total);
  }
  const bool is_interleaved =
      kind == PipelineKind::kInterleaved1F1B || kind == PipelineKind::kInterleavedZeroBubble;
  const std::optional<int> round = microbatches_per_round(shape);
  if (is_interleaved && !round) {
    throw_config(
        "parallelism.pipeline_parallel_schedule = \"{}\": {} microbatches do not divide into {} rounds, one "
        "for each {} of them (parallelism.pipeline_parallel_degree): set training.local_batch_size to a "
        "multiple of {} x pipeline_parallel_microbatch_size, or choose another schedule",
        text_of(kind), shape.microbatches, shape.microbatches / ranks, ranks, ranks);
  }

  PipelineSchedule schedule{shape.microbatches, ranks_of_stages(kind, ranks, shape.stages_per_rank), {}};
  const auto build_ranks = [&](const auto& build_list) {
    for (int rank = 0; rank < ranks; ++rank) schedule.ranks.push_back(build_list(rank));
    return schedule;
  };
  schedule.microbatches = total;
  switch (kind) {
    case PipelineKind::k1F1B:
      return build_ranks([&](int rank) { return one_forward_one_backward(rank, ranks, total); });
    case PipelineKind::kGPipe:
    case PipelineKind::kLoopedBfs:
      schedule.microbatches = shape.microbatches;
      return repeat(build_ranks([&](int rank) {
                      return breadth_first(rank, shape, /*reversed=*/kind == PipelineKind::kLoopedBfs);
                    }),
                    shape.batches);
    case PipelineKind::kInterleaved1F1B:
    case PipelineKind::kInterleavedZeroBubble: {
      const bool zero_bubble = kind == PipelineKind::kInterleavedZeroBubble;
      return build_ranks([&](int rank) { return interleaved(rank, shape, total, *round, zero_bubble); });
    }
    case PipelineKind::kZbvZeroBubble:
      return build_ranks([&](int rank) { return zero_bubble_v(rank, ranks, total); });
    case PipelineKind::kDualPipeV:
      return build_ranks([&](int rank) { return dual_pipe_v(rank, ranks, total); });
    case PipelineKind::kSingle:
    case PipelineKind::kMulti:
      break;  // refused above
  }
  throw_bug("make_schedule() has no case for {}", text_of(kind));
}

}  // namespace hyperion::parallel
