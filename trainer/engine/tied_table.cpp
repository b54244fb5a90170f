#include "trainer/engine/tied_table.h"

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "base/failpoint.h"
#include "parallel/comm/trace_range.h"
#include "parallel/job/phase.h"

namespace hyperion::trainer {

TiedTable::TiedTable(parallel::Communicator& ranks, const Stage& stage) : ranks_(ranks) {
  const ParameterPtr& table = stage.model().units().front().parameters.front();
  for (const parallel::ShardedParameterPtr& parameter : stage.parameters())
    if (&parameter->parameter() == table.get()) table_ = parameter;
}

void TiedTable::sum_gradients(int64_t step) const {
  if (!table_->parameter().trainable) return;
  parallel::set_phase(fmt::format("step {} sum of the tied table's gradients", step));
  const parallel::TraceRange range("all-reduce", "tied table");
  failpoint("step.tied");
  const at::NoGradGuard no_grad;
  ranks_.all_reduce_sum(table_->grad());
}

void TiedTable::copy_from_first(const std::vector<at::Tensor>& others) const {
  parallel::set_phase("copy of the tied table");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors = {table_->master()};
  tensors.insert(tensors.end(), others.begin(), others.end());
  for (const at::Tensor& tensor : tensors) {
    // Offloaded state is staged through the device.
    const at::Tensor sent = ranks_.takes_host_tensors() ? tensor : tensor.to(at::kCUDA);
    if (ranks_.rank() == 0) {
      ranks_.start_send(sent, 1).wait();
    } else {
      ranks_.start_recv(sent, 0).wait();
      if (!sent.is_same(tensor)) tensor.copy_(sent);
    }
  }
  if (ranks_.rank() == 1 && table_->has_separate_compute_shard())
    table_->compute_shard().copy_(table_->master());
}

}  // namespace hyperion::trainer
