#include "models/layers/sequence_exchange.h"

#include <ATen/ops/empty.h>

#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor gathered(const Tensor& x, Exchange& ranks) {
  const Tensor own = x.contiguous(), all = at::empty({ranks.size() * x.size(0), x.size(1)}, x.options());
  ranks.start_all_gather_into(all, own).wait();
  return all;
}

Tensor summed(const Tensor& x, Exchange& ranks) {
  const Tensor terms = x.contiguous(), own = at::empty({x.size(0) / ranks.size(), x.size(1)}, x.options());
  ranks.start_reduce_scatter_sum(own, terms).wait();
  return own;
}

struct GatherOverRanksFunction : Function<GatherOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Exchange* ranks) {
    keep_state(context, ExchangeOfNode(ranks));
    return gathered(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {summed(grads[0], *kept_state<ExchangeOfNode>(context)->ranks), Tensor()};
  }
};

struct SumOverRanksFunction : Function<SumOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, Exchange* ranks, bool computes) {
    keep_state(context, ExchangeOfNode(ranks));
    if (!computes) return at::empty({x.size(0) / ranks->size(), x.size(1)}, x.options());
    return summed(x, *ranks);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {gathered(grads[0], *kept_state<ExchangeOfNode>(context)->ranks), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor gather_over_ranks(const Tensor& x, Exchange* ranks) {
  return ranks == nullptr ? x : GatherOverRanksFunction::apply(x, ranks);
}

Tensor sum_over_ranks(const Tensor& x, Exchange* ranks, bool computes) {
  return ranks == nullptr ? x : SumOverRanksFunction::apply(x, ranks, computes);
}

}  // namespace hyperion::models
