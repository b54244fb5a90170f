#include "trainer/step_agreement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace hyperion::trainer {

StepTotals exchange_on_host(parallel::Communicator& host, int64_t valid_tokens, const StepFlags& own) {
  const at::Tensor counts = at::zeros({4}, at::TensorOptions(at::kLong));
  auto* values = counts.data_ptr<int64_t>();
  values[0] = valid_tokens;
  values[1] = own.stop == StopSignal::kInterrupt;
  values[2] = own.stop == StopSignal::kTerminate;
  values[3] = own.save_failed;
  host.all_reduce_sum(counts);
  const StopSignal stop = values[2] > 0   ? StopSignal::kTerminate
                          : values[1] > 0 ? StopSignal::kInterrupt
                                          : StopSignal::kNone;
  return {values[0], {own.step, stop, values[3] > 0}};
}

at::Tensor sum_valid_tokens(const parallel::ReduceChain& groups, int64_t valid_tokens, at::Device device) {
  const at::Tensor sum = at::full({}, valid_tokens, at::TensorOptions(at::kLong).device(device));
  groups.all_reduce_sum(sum);
  return sum;
}

at::Tensor loss_scale(const at::Tensor& valid_tokens) {
  return valid_tokens.to(at::kDouble).reciprocal().to(at::kFloat);
}

}  // namespace hyperion::trainer
