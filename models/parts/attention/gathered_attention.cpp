#include "models/parts/attention/gathered_attention.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/failpoint.h"
#include "models/kernels/attention/heads.h"
#include "models/kernels/attention/sinks.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"
#include "models/layers/ops.h"
#include "models/parts/attention/ring_attention.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using Parts = std::vector<SequencePart>;

// Keys and values are all-gathered together, one collective per part, as chunks
// (models/kernels/key_chunks/key_chunks.h). The chunks of one rank are [parts, 1, 2, batch, tokens, ...],
// where narrower values have zeros behind them.

Tensor empty_chunks(const Tensor& local, int64_t ranks, at::ScalarType dtype) {
  std::vector<int64_t> shape = local.sizes().vec();
  shape[1] = ranks;
  return at::empty(shape, local.options().dtype(dtype));
}

// Packs this rank's k, v [batch, kv_heads, seq, head_dim or v_head_dim] into chunks.
Tensor packed_by_part(const Tensor& k, const Tensor& v, int64_t parts) {
  const Tensor packed =
      at::empty({parts, 1, 2, k.size(0), k.size(2) / parts, k.size(1), k.size(3)}, k.options());
  kernels::table().pack_keys(packed, k, kernels::pad_heads(v, k.size(3)));
  return packed;
}

// [2, batch, seq, kv_heads, head_dim] -> keys and values [batch, kv_heads, seq, head_dim or v_head_dim]
std::pair<Tensor, Tensor> by_heads(const Tensor& keys, int64_t v_head_dim) {
  return {keys.select(0, 0).transpose(1, 2), keys.select(0, 1).transpose(1, 2).narrow(3, 0, v_head_dim)};
}

class GatheredKeys {
 public:
  // local: see packed_by_part(). Starts the all-gathers of all parts. Keys that no query of this rank sees
  // are not kept.
  GatheredKeys(const Tensor& local, const Parts& parts, Exchange& cp_group)
      : exchanged_(empty_chunks(local, cp_group.size(), local.scalar_type())),
        in_order_(at::empty({2, local.size(3), parts.back().range.end, local.size(5), local.size(6)},
                            local.options())) {
    failpoint("step.keys");
    for (int64_t i = 0; i < local.size(0); ++i)
      pending_.push_back(cp_group.start_all_gather_into(exchanged_.select(0, i), local.select(0, i)));
  }

  // Returns keys and values [batch, kv_heads, end, head_dim or v_head_dim] of the sequence, where `end` is
  // the end of part i.
  std::pair<Tensor, Tensor> before(int64_t end, int64_t i, int64_t v_head_dim) {
    if (i >= taken_) {
      for (int64_t part = taken_; part <= i; ++part) pending_[part].wait();
      kernels::table().unpack_keys(in_order_, exchanged_.narrow(0, taken_, i + 1 - taken_), taken_);
      taken_ = i + 1;
      if (taken_ == exchanged_.size(0)) exchanged_.reset();
    }
    return by_heads(in_order_.narrow(2, 0, end), v_head_dim);
  }

 private:
  Tensor exchanged_;  // chunks of all ranks
  Tensor in_order_;   // [2, batch, tokens of the sequence, kv_heads, head_dim]
  std::vector<Pending> pending_;
  int64_t taken_ = 0;  // parts
};

// Reduce-scatters the gradients of keys and values over the ranks.
class KeyGradients {
 public:
  // local: see packed_by_part().
  KeyGradients(const Tensor& local, Exchange& cp_group)
      : cp_group_(cp_group), sums_(empty_chunks(local, 1, kernels::opmath_dtype(local))) {}

  // Adds the gradients k, v [batch, kv_heads, end, head_dim or v_head_dim] from the queries of this rank's
  // part i. Parts are added from the last to the first, so the gradients of part i of all ranks are then
  // complete: starts their reduce-scatter.
  void add(const Tensor& k, const Tensor& v, int64_t i) {
    const bool first = !partial_.defined();  // the last part sees the most keys
    if (first) partial_ = empty_chunks(sums_, cp_group_.size(), sums_.scalar_type());
    (first ? kernels::table().pack_keys : kernels::table().add_keys)(partial_.narrow(0, 0, i + 1), k,
                                                                     kernels::pad_heads(v, k.size(3)));
    failpoint("step.keys");
    pending_.push_back(cp_group_.start_reduce_scatter_sum(sums_.select(0, i), partial_.select(0, i)));
  }

  // Returns the gradients of this rank's keys and values, [batch, kv_heads, seq, head_dim or v_head_dim] of
  // `dtype`.
  std::pair<Tensor, Tensor> take(at::ScalarType dtype, int64_t v_head_dim) {
    for (Pending& pending : pending_) pending.wait();
    const Tensor local =
        at::empty({2, sums_.size(3), sums_.size(0) * sums_.size(4), sums_.size(5), sums_.size(6)},
                  sums_.options().dtype(dtype));
    kernels::table().unpack_keys(local, sums_, /*first_part=*/0);
    return by_heads(local, v_head_dim);
  }

 private:
  Exchange& cp_group_;
  Tensor sums_;     // the gradients of this rank's keys, [parts, 1, 2, batch, ...]
  Tensor partial_;  // the gradients from this rank's queries, chunks of all ranks
  std::vector<Pending> pending_;
};

// Joins parts of [batch, heads, seq, head_dim] to a tensor whose memory is [batch, seq, heads, head_dim].
Tensor joined(const variable_list& parts) {
  if (parts.size() == 1) return parts[0];
  variable_list rows;
  for (const Tensor& part : parts) rows.push_back(part.transpose(1, 2));
  return at::cat(rows, 1).transpose(1, 2);
}

bool passes_in_ring(const SequenceContext& context, const ContextGroup& cp, int64_t window) {
  return cp.ring && serves_ring(context.parts.front().mask.kind, window);
}

kernels::AttentionMask with_window(kernels::AttentionMask mask, int64_t window) {
  mask.window = window;
  return mask;
}
Parts with_window(Parts parts, int64_t window) {
  for (SequencePart& part : parts) part.mask.window = window;
  return parts;
}

// Returns the output, then the log-sum-exp and the extras of the kernel for each part.
variable_list attend(const Tensor& q, const Tensor& local, int64_t v_head_dim, const Tensor& sinks,
                     const Parts& parts, Exchange& cp_group) {
  GatheredKeys keys(local, parts, cp_group);
  variable_list outputs, others;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [k, v] = keys.before(parts[i].range.end, i, v_head_dim);
    const int64_t tokens = parts[i].range.size();
    kernels::AttentionResult result = kernels::attention_forward(
        q.narrow(2, static_cast<int64_t>(i) * tokens, tokens), k, v, parts[i].mask);
    if (sinks.defined()) kernels::add_sinks(result.output, result.lse, sinks);
    outputs.push_back(std::move(result.output));
    others.push_back(std::move(result.lse));
    others.insert(others.end(), result.extras.begin(), result.extras.end());
  }
  others.insert(others.begin(), joined(outputs));
  return others;
}

struct GatheredAttentionState : torch::CustomClassHolder {
  GatheredAttentionState(Parts parts, Exchange* cp_group) : parts(std::move(parts)), cp_group(cp_group) {}
  Parts parts;
  Exchange* cp_group;
};

struct GatheredAttentionFunction : Function<GatheredAttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& given_sinks, const Parts& parts, Exchange* cp_group,
                        SelectiveCheckpoint* checkpoint) {
    const Tensor sinks = given_sinks.value_or(Tensor());
    const Tensor local = packed_by_part(k, v, static_cast<int64_t>(parts.size()));
    const variable_list results = saved_or_computed(
        checkpoint, /*save=*/true, [&] { return attend(q, local, v.size(3), sinks, parts, *cp_group); });
    variable_list saved = {q, local, sinks};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    keep_state(context, GatheredAttentionState(parts, cp_group));
    return results[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto state = kept_state<GatheredAttentionState>(context);
    const Parts& parts = state->parts;
    const auto saved = context->get_saved_variables();
    const Tensor &q = saved[0], &local = saved[1], &sinks = saved[2], &output = saved[3];
    const int64_t v_head_dim = output.size(3);
    const auto others = static_cast<int64_t>((saved.size() - 4) / parts.size());  // of each part
    GatheredKeys keys(local, parts, *state->cp_group);
    KeyGradients sums(local, *state->cp_group);
    variable_list grad_q(parts.size());
    Tensor grad_sinks;
    for (size_t i = parts.size(); i-- > 0;) {
      const auto [k, v] = keys.before(parts[i].range.end, i, v_head_dim);
      const auto queries = [&, tokens = parts[i].range.size()](const Tensor& t) {
        return t.narrow(2, static_cast<int64_t>(i) * tokens, tokens);
      };
      const auto first = saved.begin() + 4 + static_cast<int64_t>(i) * others;
      const kernels::AttentionResult result{queries(output), *first, {first + 1, first + others}};
      kernels::AttentionGradients gradients =
          kernels::attention_backward(queries(grads[0]), queries(q), k, v, parts[i].mask, result);
      grad_q[i] = std::move(gradients.q);
      sums.add(gradients.k, gradients.v, i);
      if (!sinks.defined()) continue;
      const Tensor of_part =
          kernels::sinks_gradient(queries(grads[0]), result.output, result.lse, sinks.to(result.lse.dtype()));
      grad_sinks = grad_sinks.defined() ? grad_sinks + of_part : of_part;
    }
    if (sinks.defined()) grad_sinks = grad_sinks.to(sinks.scalar_type());
    const auto [grad_k, grad_v] = sums.take(local.scalar_type(), v_head_dim);
    return {joined(grad_q), grad_k, grad_v, grad_sinks, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

int64_t value_width_over_ranks(const Tensor& q, int64_t v_head_dim, const SequenceContext& context,
                               const ContextGroup& cp) {
  const int64_t head_dim = q.size(3), seq = q.size(1);
  int64_t width = v_head_dim;
  const auto add_call = [&](int64_t queries, int64_t keys, kernels::MaskKind mask) {
    width = std::max(width, kernels::value_width({.dtype = q.scalar_type(),
                                                  .head_dim = head_dim,
                                                  .v_head_dim = v_head_dim,
                                                  .queries = queries,
                                                  .keys = keys,
                                                  .mask = mask},
                                                 q.device()));
  };
  if (cp.group == nullptr) {
    add_call(seq, seq, context.mask.kind);
  } else if (passes_in_ring(context, cp, /*window=*/0)) {
    const int64_t rows = seq / static_cast<int64_t>(context.parts.size());  // the shortest of a call
    add_call(rows, rows, kernels::MaskKind::kCausal);
  } else {
    for (const SequencePart& part : context.parts)
      add_call(part.range.size(), part.range.end, part.mask.kind);
  }
  return width;
}

Tensor attention_over_ranks(const Tensor& q, const Tensor& k, const Tensor& v, const SequenceContext& context,
                            const ContextGroup& cp, const BlockRun& run, const LayerAttention& layer) {
  SelectiveCheckpoint* checkpoint = run.attention_checkpoint();
  if (cp.group == nullptr)
    return ops::attention(q, k, v, with_window(context.mask, layer.window), checkpoint, layer.sinks);
  const Parts& parts = context.parts;
  if (passes_in_ring(context, cp, layer.window))
    return ring_attention(q, k, v, *cp.group, /*head_tail=*/parts.size() == 2, checkpoint, layer.sinks);
  const auto sinks = layer.sinks.defined() ? std::optional(layer.sinks) : std::nullopt;
  return GatheredAttentionFunction::apply(q, k, v, sinks, with_window(parts, layer.window), cp.group,
                                          checkpoint);
}

}  // namespace hyperion::models
