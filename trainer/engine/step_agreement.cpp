#include "trainer/engine/step_agreement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"

namespace hyperion::trainer {

StepAgreement::StepAgreement(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh, int rank,
                             at::Device device, std::function<bool()> save_failed)
    : host_(groups.host()),
      batch_groups_(groups.loss_groups()),
      device_(device),
      counts_(device.is_cuda() ? mesh.counts_in_loss_groups(rank) : mesh.counts_among_all(rank)),
      save_failed_(std::move(save_failed)) {}

void StepAgreement::start(int64_t step) {
  if (device_.is_cuda()) set_running_step(step, step + 1);
}

std::optional<at::Tensor> StepAgreement::before_step(int64_t step, int64_t valid_tokens) {
  if (!counts_) valid_tokens = 0;
  if (device_.is_cuda()) {
    const at::Tensor sum = sum_valid_tokens(batch_groups_, valid_tokens, device_);
    set_running_step(step, step + 1);
    return sum;
  }
  const StepTotals totals = exchange_on_host(host_, valid_tokens, {step, stop_signal(), save_failed_()});
  read(totals.flags);
  if (agreed_.stop != StopSignal::kNone) return std::nullopt;
  if (totals.valid_tokens == 0) throw_data("training: none of the step's tokens has a label to learn from");
  set_running_step(step, step);
  return at::full({}, totals.valid_tokens, at::TensorOptions(at::kLong));
}

StepFlags StepAgreement::flags(int64_t step) {
  if (device_.is_cpu()) return agreed_;
  set_running_step(step, step + 2);  // a later signal is sent in the next step
  return {step, stop_signal(), save_failed_()};
}

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

at::Tensor inverse_of(const at::Tensor& valid_tokens) {
  return valid_tokens.to(at::kDouble).reciprocal().to(at::kFloat);
}

}  // namespace hyperion::trainer
