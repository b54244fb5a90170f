#include "trainer/expert_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "base/failpoint.h"
#include "parallel/comm/trace_range.h"

namespace hyperion::trainer {

void update_expert_biases(const std::vector<models::ExpertBalancePtr>& balances,
                          const parallel::FsdpContext& ranks, const at::Tensor& skip) {
  std::vector<models::ExpertBalancePtr> updated;
  std::vector<at::Tensor> counts;
  for (const models::ExpertBalancePtr& balance : balances) {
    if (balance->coefficient == 0) continue;
    updated.push_back(balance);
    counts.push_back(balance->counts);
  }
  if (updated.empty()) return;
  failpoint("step.counts");
  const parallel::TraceRange range("update of expert biases");
  at::NoGradGuard no_grad;
  const at::Tensor all = at::stack(counts);  // [blocks, experts]
  parallel::ReduceChain({&ranks.shard(), &ranks.replicate()}).all_reduce_sum(all);
  // The sign of mean - count, in integers.
  const at::Tensor sign = (all.sum(1, /*keepdim=*/true) - all * all.size(1)).sign().to(at::kFloat);
  const at::Tensor made = 1 - skip.to(sign.device());
  for (size_t i = 0; i < updated.size(); ++i) {
    const at::Tensor step = sign.select(0, static_cast<int64_t>(i)) * updated[i]->coefficient;
    updated[i]->bias->weight.add_((step - step.mean()) * made);
    updated[i]->counts.zero_();
  }
}

}  // namespace hyperion::trainer
