// Pipeline schedules are lists: which rank runs which stage on which microbatch, in which order. They are
// built from numbers alone, without tensors or communication, and written and read as PyTorch writes them
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
  kBackward,        // dgrad and wgrad
  kInputGradient,   // dgrad: the previous stage waits for it
  kWeightGradient,  // wgrad
  kUnshard,         // all-gathers a stage's weights
  kReshard,         // frees the weights that kUnshard gathered
  kReduce,          // reduces a stage's gradients over the ranks that shard or replicate it
  kSendForward,     // sends a stage's output to the rank of the next stage
  kReceiveForward,  // receives a stage's input
  kSendBackward,    // sends the gradient of a stage's input to the rank of the previous stage
  kReceiveBackward  // receives the gradient of a stage's output
};
constexpr auto choices(PipelineOp) {
  using enum PipelineOp;
  return choice_list<PipelineOp>({{kForward, "F"},
                                  {kBackward, "B"},
                                  {kInputGradient, "I"},
                                  {kWeightGradient, "W"},
                                  {kUnshard, "UNSHARD"},
                                  {kReshard, "RESHARD"},
                                  {kReduce, "REDUCE_GRAD"},
                                  {kSendForward, "SEND_F"},
                                  {kReceiveForward, "RECV_F"},
                                  {kSendBackward, "SEND_B"},
                                  {kReceiveBackward, "RECV_B"}});
}
// Forward, backward, dgrad or wgrad.
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
  int microbatch = -1;  // -1 for kUnshard, kReshard and kReduce, which concern all microbatches
  // The next action forms one entry with this one, "(0F1;3B0)OVERLAP_F_B". Here they run in sequence.
  bool overlaps_next = false;
  bool operator==(const PipelineAction&) const = default;
};

// "2F0", "1UNSHARD"
std::string to_text(const PipelineAction& action);
// A rank's list as entries: one per action, or per pair that overlaps.
std::vector<std::string> to_entries(std::span<const PipelineAction> actions);
// The one or two actions of an entry; nullopt if it is not one.
std::optional<std::vector<PipelineAction>> parse_entry(std::string_view entry);

struct PipelineSchedule {
  int microbatches = 0;
  std::vector<int> rank_of_stage;
  std::vector<std::vector<PipelineAction>> ranks;  // by pp rank, in execution order

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
};

// The schedules of torchtitan 0.2.2. The last two take their order from a CSV file.
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
// Returns the schedule of this name, in upper or lower case. Throws Error(kUsage) listing all names for an
// unknown one.
PipelineKind pipeline_kind(std::string_view name);

// Returns whether the schedule splits backward, so that wgrads wait. A list in a file may do so too.
constexpr bool splits_backward(PipelineKind kind) {
  return kind == PipelineKind::kInterleavedZeroBubble || kind == PipelineKind::kZbvZeroBubble ||
         kind == PipelineKind::kDualPipeV;
}

// The number of stages each rank may have. A V schedule has two per rank, the second in reverse order, so
// that the last stage is on rank 0. All others assign stages round robin.
struct StagesPerRank {
  int min, max;
  bool allows(int stages) const { return min <= stages && stages <= max; }
};
StagesPerRank stages_per_rank(PipelineKind kind);

// The rank of each stage.
std::vector<int> ranks_of_stages(PipelineKind kind, int ranks, int stages_per_rank);

struct PipelineShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;  // per local batch
  int batches = 1;       // per optimizer step (gradient accumulation)
};

// Returns the compute actions of one optimizer step. Schedules whose microbatches in flight do not grow
// with their number run all batches as one; GPipe and LoopedBFS run one batch after the other. Throws
// Error(kUsage) if the schedule does not exist for these numbers, and for kSingle and kMulti.
PipelineSchedule make_schedule(PipelineKind kind, const PipelineShape& shape);

// Returns microbatches x batches. Throws Error(kUsage) if that product, or the number of forwards of
// `stages`, is too large to build lists of.
int microbatches_of_step(int microbatches, int batches, int stages);
// Repeats the schedule of one batch `batches` times in sequence.
PipelineSchedule repeat(const PipelineSchedule& schedule, int batches);

// The peak number of microbatches in flight on each rank, summed over its stages: from their forward to the
// end of their backward or wgrad.
std::vector<int> max_microbatches_in_flight(const PipelineSchedule& schedule);

}  // namespace hyperion::parallel
