// The order in which a rank runs the steps of its stage: a list of actions, made from numbers alone, and what
// runs it. With one stage it is, for one microbatch after the other: gather a unit's weights, start the
// all-gather of the next unit's, run the unit, free its weights; then the same from the last unit to the
// first, with gradients. With a pipeline (parallel/pipeline/schedule.h) an action of a stage is those of its
// units.
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

enum class Do : uint8_t {
  kForward,          // of the embedding or a block
  kLoss,             // of the head; in training its backward too
  kBackward,         // of a block or the embedding
  kInputGradient,    // half of kBackward: what the unit before needs
  kWeightGradients,  // the other half, which needs no weights
  kGather,           // starts the all-gather of a unit's weights, which several actions use
  kFree,             // a unit's gathered weights
  kAccumulate,       // adds a unit's gradients to this rank's sums
  kReduce,           // starts to add a unit's gradients, or sums, up over the ranks
  kFinish,           // of a microbatch: its last reduction is complete, and nothing of it is kept
  kSumReplicated,
  // Between two stages.
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
};

struct Action {
  Do what;
  size_t microbatch = 0, unit = 0;
  // The unit whose all-gather starts when this one's weights are there, to overlap its computation.
  std::optional<size_t> prefetch{};
  size_t stage = 0;
  bool last = false;  // kReduce: of the unit in this step
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// A step of `microbatches` through units 0 to units - 1 of one stage. No more than two units are gathered at
// once; without reshard_after_forward a block's weights stay gathered from its forward to its backward. With
// reduce_once gradients are reduced in the last microbatch alone, each unit's sum of all of them.
Schedule training_schedule(size_t units, size_t microbatches, bool reshard_after_forward, bool reduce_once);
// One microbatch without gradients.
Schedule evaluation_schedule(size_t units);

// How the stages of a model are divided over ranks, and what these do.
struct Pipeline {
  std::vector<UnitRange> stages;  // of the model, in its order
  std::vector<int> rank_of_stage;
  std::string listed{};  // the actions of a user's file, as text; empty: of a named schedule
  // The lists name pairs of a forward and a backward that overlap; here they run one after the other.
  bool names_pairs = false;
  // A stage's weights are gathered as the lists say, and else (fsdp_reshard_after_forward = "always") each
  // unit's for itself in each microbatch.
  bool gathers_stages = true;
  // Gradients are reduced after a stage's last microbatch alone, each unit's sum of all of them.
  bool reduces_once = true;
  // With transfers in the one order of all ranks. Without `training` forwards alone.
  std::function<parallel::PipelineSchedule(bool training, size_t microbatches)> make;
};
// The units' actions of one rank's list.
Schedule pipeline_schedule(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists);

class ScheduleRunner {
 public:
  // `stage` holds all units of its model.
  ScheduleRunner(Stage& stage, bool reshard_after_forward, bool reduce_once);
  // `stage` holds those of this rank's stages; the groups outlive it.
  ScheduleRunner(Stage& stage, const Pipeline& pipeline, const StageGroups& groups, at::Device device);

  // Makes the gradients of scale * (summed cross-entropy of all microbatches), in stage.gradients(). Returns
  // the unscaled sum of each microbatch (0-dim); nothing on a rank without the head. `microbatch(i)` is
  // called where its first action in a stage runs, so that its copy to the device overlaps the work of those
  // before. `metrics` takes what layers report; null: nothing.
  using Fetch = std::function<models::Microbatch(size_t i)>;
  std::vector<at::Tensor> train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                     const at::Tensor& scale, models::LayerMetrics* metrics = nullptr);
  // The same sums without gradients.
  std::vector<at::Tensor> losses(size_t microbatches, const Fetch& microbatch);

 private:
  struct StepInput {
    const Fetch& microbatch;
    const at::Tensor& scale;  // undefined: no backward
    models::LayerMetrics* metrics;
    bool trains() const { return scale.defined(); }
  };
  struct Plan {
    Schedule actions;
    int kept = 1;  // the most microbatches that it keeps something of at once, each stage counted
  };
  // One microbatch in one stage.
  struct Running {
    Slot slot;
    bool has_begun = false;              // its forward
    Pending pending{};                   // what the slot is to receive next
    std::vector<at::Tensor> received{};  // the memory of what it has received
  };
  using Key = std::pair<size_t, size_t>;  // stage, microbatch

  std::vector<at::Tensor> run(const Plan& plan, const StepInput& input);
  const Plan& plan(bool training, size_t microbatches);
  void set_phase(const char* what, const Action& action, const std::string& name) const;
  void gather(const Action& action, const char* phase) const;
  Slot& slot(const Action& action, const StepInput& input);
  Slot& ready(const Action& action, const StepInput& input);
  void transfer(const Action& action, const StepInput& input);
  void begin(const Action& action, const Plan& plan);
  void finish(const Action& action);

  Stage& stage_;
  std::vector<UnitRange> stages_;  // of the model
  std::vector<int> rank_of_stage_;
  int rank_ = 0;  // of the pipeline
  std::function<Plan(bool training, size_t microbatches)> make_;
  std::map<std::pair<bool, size_t>, Plan> made_;
  std::optional<StageTransfers> transfers_;  // none: no pipeline
  std::map<Key, Running> running_;           // that have begun and not finished
  at::DeviceType device_ = at::kCPU;         // of the transfers
  int64_t step_ = 0;
};

}  // namespace hyperion::trainer
