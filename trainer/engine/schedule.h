// A schedule is the list of actions that a rank runs in one step; it depends on numbers alone. ScheduleRunner
// runs it. With one stage, each microbatch runs forward from the first unit to the last: all-gather the
// unit's weights, prefetch the next unit's, run the unit, reshard it. Backward does the same from the last
// unit to the first and reduces gradients. With a pipeline (parallel/pipeline/schedule.h) each action of a
// stage becomes the actions of its units.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/pipeline/schedule.h"
#include "trainer/engine/stage.h"
#include "trainer/engine/stage_transfers.h"

namespace hyperion::trainer {

enum class ActionKind : uint8_t {
  kForward,           // runs the embedding or a block
  kLoss,              // runs the head; in training its backward too
  kBackward,          // runs dgrad and wgrad of a block or the embedding
  kInputGradient,     // dgrad: the gradient of the unit's input
  kWeightGradients,   // wgrad, which needs no gathered weights
  kGather,            // starts the all-gather of a unit's weights for several actions
  kReshard,           // frees a unit's gathered weights
  kAccumulate,        // adds a unit's gradients to this rank's unsharded sums
  kReduce,            // starts the reduction of a unit's gradients, or sums, over the ranks
  kFinishReduction,   // waits for the reduction in flight
  kRetireMicrobatch,  // frees a microbatch's memory
  kSumReplicated,
  // These transfer between two stages.
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
};

struct Action {
  ActionKind kind;
  size_t microbatch = 0, unit = 0;
  // The all-gather of this unit starts when the action's own weights have arrived, and overlaps the action's
  // computation.
  std::optional<size_t> prefetch{};
  size_t stage = 0;
  bool last = false;  // kReduce: this is the unit's last reduction in the step
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// ScheduleOptions says when one stage frees weights and reduces gradients.
struct ScheduleOptions {
  bool reshard_after_forward = true;  // false: a block's weights stay gathered until its backward
  bool reduce_once = false;           // gradients are summed locally and reduced in the last microbatch only
};
// Runs `microbatches` through units 0 to units - 1 of one stage. At most two units are gathered at once,
// unless their weights stay gathered. The last reduction of a microbatch overlaps the next one's first block,
// and no more: memory is at its peak after the last block, and the reduction's buffers would add to it.
Schedule training_schedule(size_t units, size_t microbatches, const ScheduleOptions& options);
// Runs one microbatch without gradients.
Schedule evaluation_schedule(size_t units);

// A pipeline assigns the stages of a model to ranks and gives the ranks' schedules.
struct Pipeline {
  std::vector<UnitRange> stages;  // the units of each stage, in the model's order
  std::vector<int> rank_of_stage;
  std::string listed{};  // the actions of a user's file, as text; empty for a named schedule
  // The schedule names pairs of a forward and a backward that overlap; here they run one after the other.
  bool names_pairs = false;
  // If true, a stage's weights are gathered as the schedule says. If false (fsdp_reshard_after_forward =
  // "always"), each microbatch gathers each unit on its own.
  bool gathers_stages = true;
  // If true, gradients are summed locally and reduced after a stage's last microbatch only.
  bool reduces_once = true;
  // Makes the lists of all ranks, with transfers in one global order. Without `training` they hold forwards
  // only.
  std::function<parallel::PipelineSchedule(bool training, size_t microbatches)> make;
};
// Expands the stage actions of `rank` into actions of units.
Schedule pipeline_schedule(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists);

class ScheduleRunner {
 public:
  // `stage` holds all units of the model: there is no pipeline.
  ScheduleRunner(Stage& stage, const ScheduleOptions& options);
  // `stage` holds the units of this rank's pipeline stages. The groups outlive the runner.
  ScheduleRunner(Stage& stage, const Pipeline& pipeline, const StageGroups& groups, at::Device device);

  // Computes the gradients of scale * (summed cross-entropy of all microbatches) into stage.gradients().
  // Returns the unscaled sum of each microbatch (0-dim); the list is empty on a rank without the head.
  // `microbatch(i)` is called at the first action of microbatch i in a stage, so that its copy to the device
  // overlaps earlier work. Layers report into `metrics` unless it is null.
  using Fetch = std::function<models::Microbatch(size_t i)>;
  std::vector<at::Tensor> train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                     const at::Tensor& scale, models::LayerMetrics* metrics = nullptr);
  // Returns the summed losses without computing gradients.
  std::vector<at::Tensor> losses(size_t microbatches, const Fetch& microbatch);

 private:
  // Source gives a run its microbatches.
  struct Source {
    const Fetch& microbatch;
    const at::Tensor& scale;  // undefined: no backward
    models::LayerMetrics* metrics;
    bool trains() const { return scale.defined(); }
    const char* forward_phase() const { return trains() ? "forward" : "validation"; }
  };
  struct Plan {
    Schedule actions;
    int max_in_flight = 1;  // the limit of microbatches in flight, summed over this rank's stages
  };
  // One microbatch in one stage.
  struct ActiveMicrobatch {
    MicrobatchState state;
    bool has_begun = false;              // its forward has begun
    Pending pending{};                   // the receive in flight
    std::vector<at::Tensor> received{};  // received tensors, to be recycled
  };
  using Key = std::pair<size_t, size_t>;  // stage, microbatch

  std::vector<at::Tensor> run(const Plan& plan, const Source& source);
  const Plan& plan(bool training, size_t microbatches);
  void set_phase(const char* what, const Action& action, const std::string& name) const;
  void gather(const Action& action, const char* phase) const;
  MicrobatchState& state(const Action& action, const Source& source);
  MicrobatchState& ready_state(const Action& action, const Source& source);
  void transfer(const Action& action, const Source& source);
  void run_forward(const Action& action, const Plan& plan, const Source& source);
  at::Tensor run_loss(const Action& action, const Source& source);
  void run_backward(const Action& action, const Source& source);
  void run_weight_gradients(const Action& action, const Source& source);
  bool begins_backward(const Action& action, const MicrobatchState& state) const;
  void begin(const Action& action, const Plan& plan);
  void retire(const Action& action);

  Stage& stage_;
  std::vector<UnitRange> stages_;  // of the model
  std::vector<int> rank_of_stage_;
  int rank_ = 0;  // this rank's index in the pipeline
  std::function<Plan(bool training, size_t microbatches)> make_;
  std::map<std::pair<bool, size_t>, Plan> plans_;
  std::optional<StageTransfers> transfers_;  // none: no pipeline
  std::map<Key, ActiveMicrobatch> active_;   // in flight
  at::DeviceType device_ = at::kCPU;         // of the transfers
  int64_t step_ = 0;
};

}  // namespace hyperion::trainer
