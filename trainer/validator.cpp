#include "trainer/validator.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"

namespace hyperion {

Validator::Validator(const JobConfig& config, const Runtime& runtime, std::unique_ptr<DataLoader> loader)
    : enabled_(config.validation.enable),
      freq_(config.validation.freq),
      steps_(config.validation.steps),
      sequences_(config.validation.sequences),
      runtime_(runtime),
      loader_(std::move(loader)) {}

Validator::Result Validator::run(FsdpModel& model, BatchMover& mover) {
  loader_->reset();
  at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kDouble));  // loss, valid tokens, sequences
  Result result;
  const uint64_t end = sequences_ ? static_cast<uint64_t>(*sequences_) : std::numeric_limits<uint64_t>::max();
  Progress progress("validation", static_cast<uint64_t>(sequences_.value_or(std::max<int64_t>(steps_, 0))),
                    sequences_ ? "sequences" : "batches");
  // Every rank makes the same number of batches, because the all-gathers are collective.
  for (int64_t step = 0; (steps_ < 0 || step < steps_) && loader_->state().sequence < end; ++step) {
    std::optional<Batch> batch = loader_->next();
    if (!batch) break;
    ignore_sequences_from(end, *batch);
    sums[0] += model.loss_sum(mover.move(*batch)).to(at::kCPU, at::kDouble);
    sums[1] += static_cast<double>(valid_tokens(*batch));
    sums[2] += static_cast<double>(sequences_with_labels(*batch));
    result.tokens += batch->rows * batch->seq_len;
    progress.update(sequences_ ? std::min(end, loader_->state().sequence) : static_cast<uint64_t>(step) + 1);
  }
  at::Tensor total = sums.to(runtime_.device, runtime_.device.is_cpu() ? at::kDouble : at::kFloat);
  runtime_.group(MeshDim::kLoss).all_reduce_sum(total);
  total = total.to(at::kCPU, at::kDouble);
  if (total[1].item<double>() == 0.0) throw_data("validation: the data set holds no token to predict");
  if (sequences_ && total[2].item<double>() < static_cast<double>(*sequences_) && !warned_) {
    log_warning("validation.sequences = {}, but the validation data hold {}: all of them are used, each once",
                *sequences_, total[2].item<double>());
    warned_ = true;
  }
  result.loss = (total[0] / total[1]).item<double>();
  return result;
}

}  // namespace hyperion
