#include "trainer/validator.h"

#include <algorithm>

#include <ATen/ops/tensor.h>

#include "base/error.h"
#include "base/progress.h"

namespace hyperion {

Validator::Validator(const JobConfig& config, const Runtime& runtime, std::unique_ptr<DataLoader> loader)
    : enabled_(config.validation.enable),
      freq_(config.validation.freq),
      steps_(config.validation.steps),
      runtime_(runtime),
      loader_(std::move(loader)) {}

Validator::Result Validator::run(UnitWalk& walk, BatchMover& mover) {
  loader_->reset();
  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kDouble));  // loss, valid tokens
  Result result;
  Progress progress("validation", static_cast<uint64_t>(std::max<int64_t>(steps_, 0)), "batches");
  for (int64_t step = 0; steps_ < 0 || step < steps_; ++step) {
    const std::optional<Batch> batch = loader_->next();
    if (!batch) break;
    sums[0] += walk.loss_sum(mover.move(*batch)).to(at::kCPU, at::kDouble);
    sums[1] += static_cast<double>(valid_tokens(*batch));
    result.tokens += batch->rows * batch->seq_len;
    progress.update(static_cast<uint64_t>(step) + 1);
  }
  at::Tensor total = sums.to(runtime_.device, runtime_.device.is_cpu() ? at::kDouble : at::kFloat);
  runtime_.group(MeshDim::kLoss).all_reduce_sum(total);
  total = total.to(at::kCPU, at::kDouble);
  if (total[1].item<double>() == 0.0) throw_data("validation: the data set holds no token to predict");
  result.loss = (total[0] / total[1]).item<double>();
  return result;
}

}  // namespace hyperion
