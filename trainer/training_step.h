// One optimizer step: the gradients of its microbatches, their norm with the check that they are finite, and
// the update. It knows no files, signals or metrics: what a job does between these three is in
// Trainer::train_step, and tests take the same step with a model of their own
// (tests/support/tiny_training.h).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/loader.h"
#include "models/layers/layer_metrics.h"
#include "trainer/build/model_and_optimizer.h"
#include "trainer/config/job_config.h"
#include "trainer/engine/batch_mover.h"
#include "trainer/engine/finite_guard.h"
#include "trainer/engine/step_agreement.h"

namespace hyperion::trainer {

// All batches of a step are fetched first, because the loss is divided by the step's global number of valid
// tokens.
struct StepInput {
  std::vector<data::Batch> batches{};  // of training.local_batch_size rows
  int64_t local_valid = 0;             // tokens with a label
  int64_t own_valid = 0;      // of these, in the parts of the sequences whose loss this rank computes
  at::Tensor global_valid{};  // of all ranks: 0-dim int64 on the device
};

struct StepLosses {
  std::vector<at::Tensor> sums{};  // of each microbatch, 0-dim; none on a rank without the head
  at::Tensor scale{};              // what the gradients are of: scale * sum of all ranks' sums
};

// Gradients that are clipped, or are divided by `divisor` in the update.
struct CheckedGradients {
  at::Tensor skip, norm;  // FiniteGuard::Outcome
  std::optional<at::Tensor> divisor{};
};

class TrainingStep {
 public:
  // `model` is what make_model_and_optimizer() has made of the same configuration and context, and outlives
  // it, as do the context's groups.
  TrainingStep(ModelAndOptimizer& model, const config::JobConfig& config, const ModelContext& context);

  // Adds a batch that the loader has read, and counts its tokens.
  void add(data::Batch batch, StepInput& input) const;

  // Makes the gradients of the mean cross-entropy over the valid tokens of all ranks. `reported` takes what
  // layers report of a step that is logged; null: nothing.
  StepLosses make_gradients(int64_t step, const StepInput& input, models::LayerMetrics* reported);
  // The L2 norm of all ranks' gradients.
  at::Tensor gradient_norm(int64_t step) const;
  // Has all ranks agree that losses and norm are finite, and clips to training.max_norm. `own`: what this
  // rank sends the others with the check.
  CheckedGradients check_and_clip(const StepFlags& own, const StepInput& input, const StepLosses& losses,
                                  const at::Tensor& norm);
  // Updates weights, moving average and the experts' biases, unless the check says to skip. Then the
  // gradients are gone.
  void update(int64_t step, double learning_rate, const CheckedGradients& checked,
              models::LayerMetrics* reported);

  // The mean loss of the step and the largest of a rank's own means. Collective; waits for the device.
  struct Loss {
    double mean, max;
  };
  Loss reduce_losses(const StepInput& input, const StepLosses& losses) const;
  // The mean loss of each of `sources` sources in a step with LayerMetrics::losses_of_rows; NaN for one
  // without a label. Collective, unless there are none; waits for the device.
  std::vector<double> reduce_source_losses(const StepInput& input, const models::LayerMetrics& reported,
                                           size_t sources) const;

  FiniteGuard& guard() { return guard_; }
  const FiniteGuard& guard() const { return guard_; }
  BatchMover& mover() { return mover_; }

 private:
  size_t microbatches(const StepInput& input) const { return input.batches.size() * per_batch_; }
  // The batch of a microbatch, and its first row there.
  std::pair<const data::Batch&, int64_t> rows_of(size_t microbatch, const StepInput& input) const;

  ModelAndOptimizer& model_;
  const parallel::ProcessGroups& groups_;
  parallel::Communicator *tensor_ranks_, *expert_ranks_;  // null: one
  int64_t batch_ranks_;                                   // with different sequences
  int64_t rows_;                                          // of a microbatch
  size_t per_batch_;                                      // microbatches
  bool counts_tokens_;                                    // Mesh::counts_in_loss_groups()
  double max_norm_;
  BatchMover mover_;
  FiniteGuard guard_;
};

}  // namespace hyperion::trainer
