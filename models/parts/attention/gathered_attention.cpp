#include "models/parts/attention/gathered_attention.h"

#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/failpoint.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"
#include "models/layers/ops.h"
#include "models/parts/attention/ring_attention.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Parts = std::vector<SequencePart>;

// Keys and values travel part by part of the ranks, both in one tensor, as chunks of the sequences
// (models/kernels/key_chunks/key_chunks.h): those of one rank are [parts, 1, 2, batch, tokens, ...].

Tensor empty_chunks(const Tensor& own, int64_t ranks, at::ScalarType dtype) {
  std::vector<int64_t> shape = own.sizes().vec();
  shape[1] = ranks;
  return at::empty(shape, own.options().dtype(dtype));
}

// k, v [batch, kv_heads, seq, head_dim] of this rank's parts, as its chunks.
Tensor packed_by_part(const Tensor& k, const Tensor& v, int64_t parts) {
  const Tensor packed =
      at::empty({parts, 1, 2, k.size(0), k.size(2) / parts, k.size(1), k.size(3)}, k.options());
  kernels::table().pack_keys(packed, k, v);
  return packed;
}

// [2, batch, seq, kv_heads, head_dim] -> keys and values [batch, kv_heads, seq, head_dim]
std::pair<Tensor, Tensor> by_heads(const Tensor& keys) {
  return {keys.select(0, 0).transpose(1, 2), keys.select(0, 1).transpose(1, 2)};
}

class GatheredKeys {
 public:
  // own: packed_by_part(). Starts the gathers of all parts. What no query of this rank sees is not kept.
  GatheredKeys(const Tensor& own, const Parts& parts, Exchange& ranks)
      : exchanged_(empty_chunks(own, ranks.size(), own.scalar_type())),
        in_order_(
            at::empty({2, own.size(3), parts.back().range.end, own.size(5), own.size(6)}, own.options())) {
    failpoint("step.keys");
    for (int64_t i = 0; i < own.size(0); ++i)
      pending_.push_back(ranks.start_all_gather_into(exchanged_.select(0, i), own.select(0, i)));
  }

  // Keys and values [batch, kv_heads, end, head_dim] of the sequence up to the end of a rank's part i.
  std::pair<Tensor, Tensor> before(int64_t end, int64_t i) {
    if (i >= taken_) {
      for (int64_t part = taken_; part <= i; ++part) pending_[part].wait();
      kernels::table().unpack_keys(in_order_, exchanged_.narrow(0, taken_, i + 1 - taken_), taken_);
      taken_ = i + 1;
      if (taken_ == exchanged_.size(0)) exchanged_.reset();
    }
    return by_heads(in_order_.narrow(2, 0, end));
  }

 private:
  Tensor exchanged_;  // chunks of all ranks
  Tensor in_order_;   // [2, batch, tokens of the sequence, kv_heads, head_dim]
  std::vector<Pending> pending_;
  int64_t taken_ = 0;  // parts
};

// The sums over the ranks of the gradients of all keys and values.
class KeyGradients {
 public:
  // own: as above
  KeyGradients(const Tensor& own, Exchange& ranks)
      : ranks_(ranks), sums_(empty_chunks(own, 1, kernels::opmath_dtype(own))) {}

  // Of queries of this rank's part i, which comes after those of part i + 1: k, v [batch, kv_heads, end,
  // head_dim]. Then no more come for keys of that part of any rank, and their sums are being exchanged.
  void add(const Tensor& k, const Tensor& v, int64_t i) {
    const bool first = !of_queries_.defined();  // has the most keys
    if (first) of_queries_ = empty_chunks(sums_, ranks_.size(), sums_.scalar_type());
    (first ? kernels::table().pack_keys : kernels::table().add_keys)(of_queries_.narrow(0, 0, i + 1), k, v);
    failpoint("step.keys");
    pending_.push_back(ranks_.start_reduce_scatter_sum(sums_.select(0, i), of_queries_.select(0, i)));
  }

  // Of this rank's keys and values, [batch, kv_heads, seq, head_dim] of `dtype`.
  std::pair<Tensor, Tensor> take(at::ScalarType dtype) {
    for (Pending& pending : pending_) pending.wait();
    const Tensor own =
        at::empty({2, sums_.size(3), sums_.size(0) * sums_.size(4), sums_.size(5), sums_.size(6)},
                  sums_.options().dtype(dtype));
    kernels::table().unpack_keys(own, sums_, /*first_part=*/0);
    return by_heads(own);
  }

 private:
  Exchange& ranks_;
  Tensor sums_;        // of own keys, [parts, 1, 2, batch, ...]
  Tensor of_queries_;  // of this rank's queries, chunks of all ranks
  std::vector<Pending> pending_;
};

// Parts of [batch, heads, seq, head_dim] as one, which lies as [batch, seq, heads, head_dim].
Tensor joined(const variable_list& parts) {
  if (parts.size() == 1) return parts[0];
  variable_list rows;
  for (const Tensor& part : parts) rows.push_back(part.transpose(1, 2));
  return at::cat(rows, 1).transpose(1, 2);
}

// The output, and then of each part the log-sum-exp and what else its kernel leaves.
variable_list attend(const Tensor& q, const Tensor& own, const Parts& parts, Exchange& ranks) {
  GatheredKeys keys(own, parts, ranks);
  variable_list outputs, others;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [k, v] = keys.before(parts[i].range.end, i);
    const int64_t tokens = parts[i].range.size();
    kernels::AttentionResult result = kernels::attention_forward(
        q.narrow(2, static_cast<int64_t>(i) * tokens, tokens), k, v, parts[i].documents);
    outputs.push_back(std::move(result.output));
    others.push_back(std::move(result.lse));
    others.insert(others.end(), result.extras.begin(), result.extras.end());
  }
  others.insert(others.begin(), joined(outputs));
  return others;
}

struct GatheredAttentionState : torch::CustomClassHolder {
  GatheredAttentionState(Parts parts, Exchange* ranks) : parts(std::move(parts)), ranks(ranks) {}
  Parts parts;
  Exchange* ranks;
};

struct GatheredAttentionFunction : Function<GatheredAttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Parts& parts, Exchange* ranks, SelectiveCheckpoint* checkpoint) {
    const Tensor own = packed_by_part(k, v, static_cast<int64_t>(parts.size()));
    const variable_list results =
        saved_or_computed(checkpoint, /*save=*/true, [&] { return attend(q, own, parts, *ranks); });
    variable_list saved = {q, own};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    keep_state(context, GatheredAttentionState(parts, ranks));
    return results[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto state = kept_state<GatheredAttentionState>(context);
    const Parts& parts = state->parts;
    const auto saved = context->get_saved_variables();
    const Tensor &q = saved[0], &own = saved[1], &output = saved[2];
    const auto others = static_cast<int64_t>((saved.size() - 3) / parts.size());  // of each part
    GatheredKeys keys(own, parts, *state->ranks);
    KeyGradients sums(own, *state->ranks);
    variable_list of_q(parts.size());
    for (size_t i = parts.size(); i-- > 0;) {
      const auto [k, v] = keys.before(parts[i].range.end, i);
      const auto queries = [&, tokens = parts[i].range.size()](const Tensor& t) {
        return t.narrow(2, static_cast<int64_t>(i) * tokens, tokens);
      };
      const auto first = saved.begin() + 3 + static_cast<int64_t>(i) * others;
      const kernels::AttentionResult result{queries(output), *first, {first + 1, first + others}};
      kernels::AttentionGradients found =
          kernels::attention_backward(queries(grads[0]), queries(q), k, v, parts[i].documents, result);
      of_q[i] = std::move(found.q);
      sums.add(found.k, found.v, i);
    }
    const auto [of_k, of_v] = sums.take(own.scalar_type());
    return {joined(of_q), of_k, of_v, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor attention_over_ranks(const Tensor& q, const Tensor& k, const Tensor& v, const SequenceContext& context,
                            const ContextGroup& group, const BlockRun& run) {
  SelectiveCheckpoint* checkpoint = run.attention_checkpoint();
  if (group.ranks == nullptr) return ops::attention(q, k, v, context.documents, checkpoint);
  const Parts& parts = context.parts;
  if (group.ring && !parts.front().documents.defined())
    return ring_attention(q, k, v, *group.ranks, /*head_tail=*/parts.size() == 2, checkpoint);
  return GatheredAttentionFunction::apply(q, k, v, parts, group.ranks, checkpoint);
}

}  // namespace hyperion::models
