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

// StepInput holds all batches of a step: they are fetched first, because the loss is divided by the step's
// global number of valid tokens.
struct StepInput {
  std::vector<data::Batch> batches{};  // of training.local_batch_size rows
  int64_t local_valid = 0;             // tokens with a label
  int64_t own_valid = 0;               // those in the parts of the sequences whose loss this rank computes
  at::Tensor global_valid{};           // the number over all ranks: 0-dim int64 on the device
};

// The gradients of a step are those of scale * (sum of `sums` over all ranks).
struct StepLosses {
  std::vector<at::Tensor> sums{};  // one per microbatch, 0-dim; none on a rank without the head
  at::Tensor scale{};
};

// Gradients that are clipped, or are divided by `divisor` in the update.
struct CheckedGradients {
  at::Tensor skip, norm;  // FiniteGuard::Outcome
  std::optional<at::Tensor> divisor{};
};

class TrainingStep {
 public:
  // `model` comes from make_model_and_optimizer() with the same configuration and context. It and the
  // context's groups outlive this object.
  TrainingStep(ModelAndOptimizer& model, const config::JobConfig& config, const ModelContext& context);

  // Adds a batch that the loader has read, and counts its tokens.
  void add(data::Batch batch, StepInput& input) const;

  // Computes the gradients of the mean cross-entropy over the valid tokens of all ranks. `reported` receives
  // the layers' metrics if the step is logged; null: it is not.
  StepLosses make_gradients(int64_t step, const StepInput& input, models::LayerMetrics* reported);
  // Returns the global gradient norm (L2). Collective.
  at::Tensor gradient_norm(int64_t step) const;
  // All-reduces the check that losses and norm are finite, and clips to training.max_norm. `own`: this rank's
  // step flags, which are sent with the check.
  CheckedGradients check_and_clip(const StepFlags& own, const StepInput& input, const StepLosses& losses,
                                  const at::Tensor& norm);
  // Updates weights, moving average and the experts' biases, unless the check says to skip. Frees the
  // gradients.
  void update(int64_t step, double learning_rate, const CheckedGradients& checked,
              models::LayerMetrics* reported);

  // Returns the mean loss of the step and the largest mean of a rank. Collective; waits for the device.
  struct Loss {
    double mean, max;
  };
  Loss reduce_losses(const StepInput& input, const StepLosses& losses) const;
  // Returns the mean loss of each of `sources` sources in a step with LayerMetrics::losses_of_rows; NaN for
  // one without a label. Collective, unless there are none; waits for the device.
  std::vector<double> reduce_source_losses(const StepInput& input, const models::LayerMetrics& reported,
                                           size_t sources) const;

  FiniteGuard& guard() { return guard_; }
  const FiniteGuard& guard() const { return guard_; }
  BatchMover& mover() { return mover_; }

 private:
  size_t microbatches(const StepInput& input) const { return input.batches.size() * per_batch_; }
  // Returns the batch of a microbatch, and its first row there.
  std::pair<const data::Batch&, int64_t> rows_of(size_t microbatch, const StepInput& input) const;

  ModelAndOptimizer& model_;
  const parallel::ProcessGroups& groups_;
  parallel::Communicator *tensor_ranks_, *expert_ranks_;  // null if the degree is 1
  int64_t batch_ranks_;                                   // the data-parallel degree
  int64_t rows_;                                          // rows per microbatch
  size_t per_batch_;                                      // microbatches per batch
  bool counts_tokens_;                                    // Mesh::counts_in_loss_groups()
  double max_norm_;
  BatchMover mover_;
  FiniteGuard guard_;
};

}  // namespace hyperion::trainer
