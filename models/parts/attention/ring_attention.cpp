#include "models/parts/attention/ring_attention.h"

#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "base/failpoint.h"
#include "models/kernels/attention/heads.h"
#include "models/kernels/attention/merge.h"
#include "models/kernels/attention/sinks.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using kernels::MaskKind;

// Selects rows of t [batch, heads, seq] or [batch, heads, seq, head_dim].
Tensor ring_rows(const Tensor& t, RingRows rows) {
  if (rows == RingRows::kAll) return t;
  const int64_t half = t.size(2) / 2;
  return t.narrow(2, rows == RingRows::kFirstHalf ? 0 : half, half);
}

// A buffer of keys and values, or of their gradients, that travels around the ring, one hop at a time.
class RingBuffer {
 public:
  // own: [2, batch, seq, kv_heads, head_dim]
  RingBuffer(Tensor own, Exchange& cp_group)
      : cp_group_(cp_group), hops_(cp_group.size() - 1), here_(std::move(own)) {}

  // Starts a hop: here() travels to the next rank, and must not be written before finish(). Does nothing
  // after the last hop.
  void start() {
    if (hops_ == 0) return;
    failpoint("step.keys");
    --hops_;
    if (!incoming_.defined()) incoming_ = at::empty_like(here_);
    const int size = cp_group_.size(), rank = cp_group_.rank();
    pending_ = cp_group_.start_transfers({{Transfer::Kind::kSend, here_, (rank + 1) % size},
                                          {Transfer::Kind::kReceive, incoming_, (rank + size - 1) % size}});
  }
  // Waits for the hop, if one was started. here() is then the buffer of the previous rank.
  void finish() {
    if (pending_.done()) return;
    pending_.wait();
    std::swap(here_, incoming_);
  }

  const Tensor& here() const { return here_; }
  // [batch, kv_heads, seq, head_dim or v_head_dim]
  Tensor k() const { return here_.select(0, 0).transpose(1, 2); }
  Tensor v(int64_t v_head_dim) const { return here_.select(0, 1).transpose(1, 2).narrow(3, 0, v_head_dim); }

 private:
  Exchange& cp_group_;
  int hops_;  // how many are left
  Tensor here_, incoming_;
  Pending pending_;
};

// Narrower values have zeros behind them.
Tensor packed_keys(const Tensor& k, const Tensor& v) {
  return at::stack({k.transpose(1, 2), kernels::pad_heads(v, k.size(3)).transpose(1, 2)});
}

// Returns the output, the log-sum-exp of all keys, and the extras of the kernel of the first step.
variable_list attend_round(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sinks,
                           Exchange& cp_group, bool head_tail) {
  RingBuffer keys(packed_keys(k, v), cp_group);
  keys.start();
  kernels::AttentionResult own = kernels::attention_forward(q, k, v, {});
  const Tensor output = own.output.to(kernels::opmath_dtype(q));
  for (const RingStep& step : ring_steps(cp_group.size(), cp_group.rank(), head_tail)) {
    if (step.source == cp_group.rank()) continue;
    keys.finish();
    keys.start();
    if (!step.attends) continue;
    merge_attention(ring_rows(output, step.queries), ring_rows(own.lse, step.queries),
                    kernels::attention_forward(ring_rows(q, step.queries), ring_rows(keys.k(), step.keys),
                                               ring_rows(keys.v(v.size(3)), step.keys), {step.mask}));
  }
  if (sinks.defined()) kernels::add_sinks(output, own.lse, sinks);
  variable_list results = {output.to(q.scalar_type()), own.lse};
  results.insert(results.end(), own.extras.begin(), own.extras.end());
  return results;
}

kernels::AttentionGradients gradients_round(const Tensor& grad, const Tensor& q, const Tensor& k,
                                            const Tensor& v, const kernels::AttentionResult& result,
                                            Exchange& cp_group, bool head_tail) {
  RingBuffer keys(packed_keys(k, v), cp_group);
  keys.start();
  const kernels::AttentionGradients own = kernels::attention_backward(grad, q, k, v, {}, result);
  const auto wide = kernels::opmath_dtype(q);
  const Tensor grad_q = own.q.to(wide);
  // The gradients of the keys and values of each step.
  RingBuffer gradients(at::empty({2, k.size(0), k.size(2), k.size(1), k.size(3)}, k.options().dtype(wide)),
                       cp_group);
  bool begun = false;
  const Tensor lse = result.lse.contiguous();
  Tensor lse_of_second_half;
  // Adds the gradients of all of a rank's keys, or of the first half.
  const auto add = [&](const Tensor& grad_k, const Tensor& grad_v) {
    const Tensor halves = gradients.here().unflatten(2, {head_tail ? 2 : 1, -1}).permute({2, 0, 1, 3, 4, 5});
    (begun ? kernels::table().add_keys : kernels::table().pack_keys)(
        halves.unsqueeze(1), grad_k, kernels::pad_heads(grad_v, grad_k.size(3)));
  };
  for (const RingStep& step : ring_steps(cp_group.size(), cp_group.rank(), head_tail)) {
    if (step.source == cp_group.rank()) continue;
    keys.finish();
    keys.start();
    kernels::AttentionGradients step_gradients;
    if (step.attends) {
      const bool all = step.queries == RingRows::kAll;
      if (!all && !lse_of_second_half.defined())
        lse_of_second_half = ring_rows(lse, RingRows::kSecondHalf).contiguous();
      const kernels::AttentionResult step_result = {ring_rows(result.output, step.queries),
                                                    all ? lse : lse_of_second_half, result.extras};
      step_gradients = kernels::attention_backward(
          ring_rows(grad, step.queries), ring_rows(q, step.queries), ring_rows(keys.k(), step.keys),
          ring_rows(keys.v(v.size(3)), step.keys), {step.mask}, step_result);
      ring_rows(grad_q, step.queries).add_(step_gradients.q);
    }
    gradients.finish();  // from the previous rank, which had these keys in the previous step
    if (step.attends)
      add(step_gradients.k, step_gradients.v);
    else if (!begun)
      gradients.here().zero_();
    begun = true;
    gradients.start();
  }
  gradients.finish();  // the gradients of this rank's keys, from the queries of all other ranks
  add(own.k, own.v);
  const Tensor grad_keys = gradients.here().to(k.scalar_type());
  return {grad_q.to(q.scalar_type()), grad_keys.select(0, 0).transpose(1, 2),
          grad_keys.select(0, 1).transpose(1, 2).narrow(3, 0, v.size(3))};
}

struct RingState : torch::CustomClassHolder {
  RingState(Exchange* cp_group, bool head_tail) : cp_group(cp_group), head_tail(head_tail) {}
  Exchange* cp_group;
  bool head_tail;
};

struct RingAttentionFunction : Function<RingAttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& given_sinks, Exchange* cp_group, bool head_tail,
                        SelectiveCheckpoint* checkpoint) {
    const Tensor sinks = given_sinks.value_or(Tensor());
    const variable_list results = saved_or_computed(
        checkpoint, /*save=*/true, [&] { return attend_round(q, k, v, sinks, *cp_group, head_tail); });
    variable_list saved = {q, k, v, sinks};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    keep_state(context, RingState(cp_group, head_tail));
    return results[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto state = kept_state<RingState>(context);
    const auto saved = context->get_saved_variables();
    const Tensor& sinks = saved[3];
    const kernels::AttentionResult result{saved[4], saved[5], {saved.begin() + 6, saved.end()}};
    const auto [q, k, v] =
        gradients_round(grads[0], saved[0], saved[1], saved[2], result, *state->cp_group, state->head_tail);
    const Tensor grad_sinks =
        sinks.defined() ? kernels::sinks_gradient(grads[0], result.output, result.lse, sinks) : Tensor();
    return {q, k, v, grad_sinks, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

std::vector<RingStep> ring_steps(int ranks, int rank, bool head_tail) {
  std::vector<RingStep> steps = {{.source = rank, .mask = MaskKind::kCausal}};
  for (int step = 1; step < ranks; ++step) {
    const int source = (rank - step + ranks) % ranks;
    const bool before = source < rank;
    RingStep next = {.source = source, .attends = head_tail || before};
    // The second half of an earlier rank comes after all queries of this rank. Both halves of a later rank
    // come between the halves of this rank.
    if (head_tail && before) next.keys = RingRows::kFirstHalf;
    if (head_tail && !before) next.queries = RingRows::kSecondHalf;
    steps.push_back(next);
  }
  return steps;
}

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, Exchange& cp_group, bool head_tail,
                      SelectiveCheckpoint* checkpoint, const Tensor& sinks) {
  return RingAttentionFunction::apply(q, k, v, sinks.defined() ? std::optional(sinks) : std::nullopt,
                                      &cp_group, head_tail, checkpoint);
}

}  // namespace hyperion::models
