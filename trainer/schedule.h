// The order in which a rank runs the steps of its stage: a list of actions, made from numbers alone, and what
// runs it. With one stage it is, for one microbatch after the other: gather a unit's weights, start the
// all-gather of the next unit's, run the unit, free its weights; then the same from the last unit to the
// first, with gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/stage.h"

namespace hyperion::trainer {

enum class Do : uint8_t {
  kForward,     // of the embedding or a block
  kLoss,        // of the head; in training its backward too
  kBackward,    // of a block or the embedding
  kFree,        // a unit's gathered weights
  kAccumulate,  // adds a unit's gradients to this rank's sums
  kReduce,      // starts to add a unit's gradients, or sums, up over the ranks
  kFinish,      // of a microbatch: its last reduction is complete, and nothing of it is kept
  kSumReplicated,
};

struct Action {
  Do what;
  size_t microbatch = 0, unit = 0;
  // The unit whose all-gather starts when this one's weights are there, to overlap its computation.
  std::optional<size_t> prefetch{};
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// A step of `microbatches` through units 0 to units - 1 of one stage. No more than two units are gathered at
// once; without reshard_after_forward a block's weights stay gathered from its forward to its backward. With
// reduce_once gradients are reduced in the last microbatch alone, each unit's sum of all of them.
Schedule training_schedule(size_t units, size_t microbatches, bool reshard_after_forward, bool reduce_once);
// One microbatch without gradients.
Schedule evaluation_schedule(size_t units);

class ScheduleRunner {
 public:
  // `stage` holds all units of its model.
  ScheduleRunner(Stage& stage, bool reshard_after_forward, bool reduce_once)
      : stage_(stage), reshard_after_forward_(reshard_after_forward), reduce_once_(reduce_once) {}

  // Makes the gradients of scale * (summed cross-entropy of all microbatches), in stage.gradients(). Returns
  // the unscaled sum of each microbatch (0-dim). `microbatch(i)` is called where its first action runs, so
  // that its copy to the device overlaps the work of those before. `metrics` takes what layers report; null:
  // nothing.
  using Fetch = std::function<models::Microbatch(size_t i)>;
  std::vector<at::Tensor> train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                     const at::Tensor& scale, models::LayerMetrics* metrics = nullptr);
  // The summed cross-entropy (0-dim) without gradients.
  at::Tensor loss_sum(const models::Microbatch& batch);

 private:
  std::vector<at::Tensor> run(const Schedule& schedule, size_t microbatches, const Fetch& microbatch,
                              const at::Tensor& scale, models::LayerMetrics* metrics);
  void set_phase(const char* what, size_t unit) const;
  void gather(const Action& action, const char* phase) const;

  Stage& stage_;
  bool reshard_after_forward_, reduce_once_;
  int64_t step_ = 0;
};

}  // namespace hyperion::trainer
