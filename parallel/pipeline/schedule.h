// Pipeline schedules as lists: which rank runs which stage on which microbatch, in which order. Made from
// numbers alone, without tensors or communication. Lists are written and read as PyTorch's
// (torch.distributed.pipelining.schedules): "2F0" is the forward of stage 2 on microbatch 0.
//
// 1F1B, 2 ranks, 4 microbatches; a backward takes two units of time, dots are the bubble:
//   rank 0  F0 F1 .. .. B0 B0 F2 B1 B1 F3 B2 B2 .. B3 B3
//   rank 1  .. F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .. ..
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/choice.h"

namespace hyperion::parallel {

enum class PipelineOp : uint8_t {
  kForward,
  kBackward,        // of input and weights
  kInputGradient,   // the half of a backward that the stage before waits for
  kWeightGradient,  // the other half
  kGather,          // a stage's weights, from the ranks that shard them
  kFree,            // what kGather has gathered
  kReduce,          // a stage's gradients, over the ranks that shard or replicate it
  kSendForward,     // a stage's output, to the rank of the next stage
  kReceiveForward,  // a stage's input
  kSendBackward,    // the gradient of a stage's input, to the rank of the stage before
  kReceiveBackward  // the gradient of a stage's output
};
constexpr auto choices(PipelineOp) {
  using enum PipelineOp;
  return choice_list<PipelineOp>({{kForward, "F"},
                                  {kBackward, "B"},
                                  {kInputGradient, "I"},
                                  {kWeightGradient, "W"},
                                  {kGather, "UNSHARD"},
                                  {kFree, "RESHARD"},
                                  {kReduce, "REDUCE_GRAD"},
                                  {kSendForward, "SEND_F"},
                                  {kReceiveForward, "RECV_F"},
                                  {kSendBackward, "SEND_B"},
                                  {kReceiveBackward, "RECV_B"}});
}
// Forward, backward and the halves of a backward.
constexpr bool is_compute(PipelineOp op) {
  return op <= PipelineOp::kWeightGradient;
}
constexpr bool is_send(PipelineOp op) {
  return op == PipelineOp::kSendForward || op == PipelineOp::kSendBackward;
}
constexpr bool is_transfer(PipelineOp op) {
  return op >= PipelineOp::kSendForward;
}

struct PipelineAction {
  PipelineOp op = PipelineOp::kForward;
  int stage = 0;
  int microbatch = -1;  // -1 for kGather, kFree and kReduce, which are about all of them
  // The next action forms one entry with this one, "(0F1;3B0)OVERLAP_F_B". Here they run one after the other.
  bool overlaps_next = false;
  bool operator==(const PipelineAction&) const = default;
};

// "2F0", "1UNSHARD"
std::string to_text(const PipelineAction& action);
// A rank's list as entries: one for each action, or for two that overlap.
std::vector<std::string> entries_of(std::span<const PipelineAction> actions);
// The one or two actions of an entry; nothing where it is none.
std::optional<std::vector<PipelineAction>> parse_entry(std::string_view entry);

struct PipelineSchedule {
  int microbatches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<PipelineAction>> ranks;  // by rank of the pipeline, in order of execution

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
};

// The schedules of torchtitan 0.2.2. The last two have no order of their own: it comes from a CSV file.
enum class PipelineKind {
  kGPipe,
  k1F1B,
  kLoopedBfs,
  kInterleaved1F1B,
  kInterleavedZeroBubble,
  kZbvZeroBubble,
  kDualPipeV,
  kSingle,
  kMulti
};
constexpr auto choices(PipelineKind) {
  using enum PipelineKind;
  return choice_list<PipelineKind>({{kGPipe, "GPipe"},
                                    {k1F1B, "1F1B"},
                                    {kLoopedBfs, "LoopedBFS"},
                                    {kInterleaved1F1B, "Interleaved1F1B"},
                                    {kInterleavedZeroBubble, "InterleavedZeroBubble"},
                                    {kZbvZeroBubble, "ZBVZeroBubble"},
                                    {kDualPipeV, "DualPipeV"},
                                    {kSingle, "PipelineScheduleSingle"},
                                    {kMulti, "PipelineScheduleMulti"}});
}
// The schedule of this name, in upper or lower case. Throws Error(kUsage) with all names for another.
PipelineKind pipeline_kind(std::string_view name);

// How many stages each rank may have. The V schedules have two, of which the second ones lie in reverse
// order, so that the last stage is on rank 0; all others deal stages round robin.
struct StagesPerRank {
  int least, most;
  bool allow(int stages) const { return least <= stages && stages <= most; }
};
StagesPerRank stages_per_rank(PipelineKind kind);

// By stage.
std::vector<int> ranks_of_stages(PipelineKind kind, int ranks, int stages_per_rank);

struct PipelineShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;  // of one local batch
  int batches = 1;       // of one optimizer step (gradient accumulation)
};

// The compute actions of one optimizer step. Schedules whose kept microbatches do not grow with their number
// run all batches as one, GPipe and LoopedBFS one batch after the other. Throws Error(kUsage) where the
// schedule does not exist for these numbers, and for kSingle and kMulti.
PipelineSchedule make_schedule(PipelineKind kind, const PipelineShape& shape);

// The product. Throws Error(kUsage) for more, or for more forwards of `stages`, than lists can be made of.
int microbatches_of_step(int microbatches, int batches, int stages);
// `schedule`, of one batch, for `batches` of them, one after the other.
PipelineSchedule repeat(const PipelineSchedule& schedule, int batches);

// How many microbatches each rank keeps something of at once, each stage counted (`weights[stage]` times):
// from their forward to the end of their backward or weight gradient.
std::vector<int> kept_microbatches(const PipelineSchedule& schedule, const std::vector<int>& weights = {});
// The same of microbatches whose weight gradients wait: from their input gradient to the end of those.
std::vector<int> deferred_microbatches(const PipelineSchedule& schedule,
                                       const std::vector<int>& weights = {});

}  // namespace hyperion::parallel
