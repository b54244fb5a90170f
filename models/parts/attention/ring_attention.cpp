#include "models/parts/attention/ring_attention.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/failpoint.h"
#include "models/kernels/attention/merge.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using kernels::Causality;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Of [batch, heads, seq] or [batch, heads, seq, head_dim].
Tensor ring_rows(const Tensor& t, RingRows rows) {
  if (rows == RingRows::kAll) return t;
  const int64_t half = t.size(2) / 2;
  return t.narrow(2, rows == RingRows::kFirstHalf ? 0 : half, half);
}

// Keys and values of a rank, or their gradients, that go round the ranks: as many hops as there are other
// ranks, one at a time.
class RingBuffer {
 public:
  // own: [2, batch, seq, kv_heads, head_dim]
  RingBuffer(Tensor own, Exchange& ranks) : ranks_(ranks), hops_(ranks.size() - 1), here_(std::move(own)) {}

  // What is here goes to the next rank, and must not be changed before finish().
  void start() {
    if (hops_ == 0) return;
    failpoint("step.keys");
    --hops_;
    if (!coming_.defined()) coming_ = at::empty_like(here_);
    const int size = ranks_.size(), rank = ranks_.rank();
    pending_ = ranks_.start_transfers({{Transfer::Kind::kSend, here_, (rank + 1) % size},
                                       {Transfer::Kind::kReceive, coming_, (rank + size - 1) % size}});
  }
  // Then what the rank before has sent is here, where a hop had been started.
  void finish() {
    if (pending_.done()) return;
    pending_.wait();
    std::swap(here_, coming_);
  }

  const Tensor& here() const { return here_; }
  // [batch, kv_heads, seq, head_dim]
  Tensor of_keys() const { return here_.select(0, 0).transpose(1, 2); }
  Tensor of_values() const { return here_.select(0, 1).transpose(1, 2); }

 private:
  Exchange& ranks_;
  int hops_;  // that are left
  Tensor here_, coming_;
  Pending pending_;
};

Tensor packed_keys(const Tensor& k, const Tensor& v) {
  return at::stack({k.transpose(1, 2), v.transpose(1, 2)});
}

// The output, the log-sum-exp of all keys, and what else a kernel leaves.
variable_list attend_round(const Tensor& q, const Tensor& k, const Tensor& v, Exchange& ranks,
                           bool head_tail) {
  RingBuffer keys(packed_keys(k, v), ranks);
  keys.start();
  kernels::AttentionResult own = kernels::attention_forward(q, k, v, {});
  const Tensor output = own.output.to(kernels::opmath_dtype(q));
  for (const RingStep& step : ring_steps(ranks.size(), ranks.rank(), head_tail)) {
    if (step.source == ranks.rank()) continue;
    keys.finish();
    keys.start();
    if (!step.attends) continue;
    merge_attention(
        ring_rows(output, step.queries), ring_rows(own.lse, step.queries),
        kernels::attention_forward(ring_rows(q, step.queries), ring_rows(keys.of_keys(), step.keys),
                                   ring_rows(keys.of_values(), step.keys), {}, step.causality));
  }
  variable_list results = {output.to(q.scalar_type()), own.lse};
  results.insert(results.end(), own.extras.begin(), own.extras.end());
  return results;
}

kernels::AttentionGradients gradients_round(const Tensor& grad, const Tensor& q, const Tensor& k,
                                            const Tensor& v, const kernels::AttentionResult& result,
                                            Exchange& ranks, bool head_tail) {
  RingBuffer keys(packed_keys(k, v), ranks);
  keys.start();
  const kernels::AttentionGradients own = kernels::attention_backward(grad, q, k, v, {}, result);
  const auto wide = kernels::opmath_dtype(q);
  const Tensor of_q = own.q.to(wide);
  // Of the keys and values that are here in each step.
  RingBuffer gradients(at::empty({2, k.size(0), k.size(2), k.size(1), k.size(3)}, k.options().dtype(wide)),
                       ranks);
  bool begun = false;
  const Tensor lse = result.lse.contiguous();
  Tensor lse_of_second_half;
  // Of all of them, or of the first half.
  const auto add = [&](const Tensor& of_k, const Tensor& of_v) {
    const Tensor halves = gradients.here().unflatten(2, {head_tail ? 2 : 1, -1}).permute({2, 0, 1, 3, 4, 5});
    (begun ? kernels::table().add_keys : kernels::table().pack_keys)(halves.unsqueeze(1), of_k, of_v);
  };
  for (const RingStep& step : ring_steps(ranks.size(), ranks.rank(), head_tail)) {
    if (step.source == ranks.rank()) continue;
    keys.finish();
    keys.start();
    kernels::AttentionGradients found;
    if (step.attends) {
      const bool all = step.queries == RingRows::kAll;
      if (!all && !lse_of_second_half.defined())
        lse_of_second_half = ring_rows(lse, RingRows::kSecondHalf).contiguous();
      const kernels::AttentionResult of_queries = {ring_rows(result.output, step.queries),
                                                   all ? lse : lse_of_second_half, result.extras};
      found = kernels::attention_backward(
          ring_rows(grad, step.queries), ring_rows(q, step.queries), ring_rows(keys.of_keys(), step.keys),
          ring_rows(keys.of_values(), step.keys), {}, of_queries, step.causality);
      ring_rows(of_q, step.queries).add_(found.q);
    }
    gradients.finish();  // from the rank before, which had these keys in the step before
    if (step.attends)
      add(found.k, found.v);
    else if (!begun)
      gradients.here().zero_();
    begun = true;
    gradients.start();
  }
  gradients.finish();  // of the own keys, by the queries of all other ranks
  add(own.k, own.v);
  const Tensor of_keys = gradients.here().to(k.scalar_type());
  return {of_q.to(q.scalar_type()), of_keys.select(0, 0).transpose(1, 2),
          of_keys.select(0, 1).transpose(1, 2)};
}

struct RingState : torch::CustomClassHolder {
  RingState(Exchange* ranks, bool head_tail) : ranks(ranks), head_tail(head_tail) {}
  Exchange* ranks;
  bool head_tail;
};

struct RingAttentionFunction : Function<RingAttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        Exchange* ranks, bool head_tail, SelectiveCheckpoint* checkpoint) {
    const variable_list results = saved_or_computed(checkpoint, /*save=*/true,
                                                    [&] { return attend_round(q, k, v, *ranks, head_tail); });
    variable_list saved = {q, k, v};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    keep_state(context, RingState(ranks, head_tail));
    return results[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto state = kept_state<RingState>(context);
    const auto saved = context->get_saved_variables();
    const kernels::AttentionResult result{saved[3], saved[4], {saved.begin() + 5, saved.end()}};
    const auto [q, k, v] =
        gradients_round(grads[0], saved[0], saved[1], saved[2], result, *state->ranks, state->head_tail);
    return {q, k, v, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::vector<RingStep> ring_steps(int ranks, int rank, bool head_tail) {
  std::vector<RingStep> steps = {{.source = rank, .causality = Causality::kFromLastKey}};
  for (int step = 1; step < ranks; ++step) {
    const int source = (rank - step + ranks) % ranks;
    const bool before = source < rank;
    RingStep next = {.source = source, .attends = head_tail || before};
    // The second half of a rank before this one comes after all queries here. Both halves of a rank after it
    // come between the halves here.
    if (head_tail && before) next.keys = RingRows::kFirstHalf;
    if (head_tail && !before) next.queries = RingRows::kSecondHalf;
    steps.push_back(next);
  }
  return steps;
}

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, Exchange& ranks, bool head_tail,
                      SelectiveCheckpoint* checkpoint) {
  return RingAttentionFunction::apply(q, k, v, &ranks, head_tail, checkpoint);
}

}  // namespace hyperion::models
