#include "models/layers/sequence_exchange.h"

#include <ATen/ops/empty.h>

#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;

Tensor gathered(const Tensor& x, Exchange& group) {
  const Tensor shard = x.contiguous(), out = at::empty({group.size() * x.size(0), x.size(1)}, x.options());
  group.start_all_gather_into(out, shard).wait();
  return out;
}

Tensor summed(const Tensor& x, Exchange& group) {
  const Tensor terms = x.contiguous(), sum = at::empty({x.size(0) / group.size(), x.size(1)}, x.options());
  group.start_reduce_scatter_sum(sum, terms).wait();
  return sum;
}

struct GatherOverRanksFunction : Function<GatherOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Exchange* group) {
    keep_state(context, ExchangeOfNode(group));
    return gathered(x, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {summed(grads[0], *kept_state<ExchangeOfNode>(context)->group), Tensor()};
  }
};

struct SumOverRanksFunction : Function<SumOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Exchange* group, bool computes) {
    keep_state(context, ExchangeOfNode(group));
    if (!computes) return at::empty({x.size(0) / group->size(), x.size(1)}, x.options());
    return summed(x, *group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {gathered(grads[0], *kept_state<ExchangeOfNode>(context)->group), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor gather_over_ranks(const Tensor& x, Exchange* group) {
  return group == nullptr ? x : GatherOverRanksFunction::apply(x, group);
}

Tensor sum_over_ranks(const Tensor& x, Exchange* group, bool computes) {
  return group == nullptr ? x : SumOverRanksFunction::apply(x, group, computes);
}

}  // namespace hyperion::models
