#include "models/gathered_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/failpoint.h"
#include "models/kernels/common/dtype.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"
#include "models/ops.h"
#include "models/ring_attention.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Parts = std::vector<SequencePart>;

// Keys and values travel part by part of the ranks, both in one tensor: [2, batch, tokens, kv_heads,
// head_dim] of each rank. `exchanged[i]` has part i of all ranks, [ranks, 2, batch, ...]: with i = 0 they lie
// in the order of the sequence, with i = 1 in reverse behind them.

// Of part i: how many chunks of the sequence before `end` are in it.
int64_t chunks_before(int64_t end, size_t i, int64_t ranks, int64_t tokens) {
  return std::clamp<int64_t>(end / tokens - static_cast<int64_t>(i) * ranks, 0, ranks);
}

// Those chunks of exchanged[i], whose dimension 0 is the ranks.
Tensor ranks_of_chunks(const Tensor& of_ranks, size_t i, int64_t chunks) {
  return i == 0 ? of_ranks.narrow(0, 0, chunks) : of_ranks.narrow(0, of_ranks.size(0) - chunks, chunks);
}

// Between the order of the ranks and that of the sequence.
Tensor in_other_order(const Tensor& chunks, size_t i) {
  return i == 0 || chunks.size(0) == 1 ? chunks : chunks.flip(0);
}

// k, v [batch, kv_heads, seq, head_dim] -> [parts, 2, batch, tokens of a part, kv_heads, head_dim]
Tensor packed_by_part(const Tensor& k, const Tensor& v, int64_t parts) {
  const int64_t tokens = k.size(2) / parts;
  const Tensor packed = at::empty({parts, 2, k.size(0), tokens, k.size(1), k.size(3)}, k.options());
  const auto by_part = [&](const Tensor& t) {
    return t.unflatten(2, {parts, tokens}).permute({2, 0, 3, 1, 4});
  };
  packed.select(1, 0).copy_(by_part(k));
  packed.select(1, 1).copy_(by_part(v));
  return packed;
}

class GatheredKeys {
 public:
  // own: packed_by_part(). Starts the gathers of all parts. What no query of this rank sees is not kept.
  GatheredKeys(const Tensor& own, const Parts& parts, Exchange& ranks) : ranks_(ranks.size()) {
    failpoint("step.keys");
    for (int64_t i = 0; i < own.size(0); ++i) {
      std::vector<int64_t> shape = own.sizes().slice(1).vec();
      shape.insert(shape.begin(), ranks_);
      const Tensor& exchanged = exchanged_.emplace_back(at::empty(shape, own.options()));
      pending_.push_back(ranks.start_all_gather_into(exchanged, own.select(0, i)));
    }
    std::vector<int64_t> shape = own.sizes().slice(1).vec();
    shape[2] = parts.back().range.end;
    in_order_ = at::empty(shape, own.options());
  }

  // Keys and values [batch, kv_heads, end, head_dim] of the sequence up to the end of a rank's part i.
  std::pair<Tensor, Tensor> before(int64_t end, size_t i) {
    for (size_t next = 0; next <= i; ++next) take(next);
    const auto of = [&](int64_t which) {
      return in_order_.select(0, which).narrow(1, 0, end).transpose(1, 2);
    };
    return {of(0), of(1)};
  }

 private:
  void take(size_t i) {
    if (!exchanged_[i].defined()) return;
    pending_[i].wait();
    const int64_t tokens = exchanged_[i].size(3),
                  chunks = chunks_before(in_order_.size(2), i, ranks_, tokens);
    in_order_.narrow(2, static_cast<int64_t>(i) * ranks_ * tokens, chunks * tokens)
        .unflatten(2, {chunks, tokens})
        .copy_(in_other_order(ranks_of_chunks(exchanged_[i], i, chunks), i).permute({1, 2, 0, 3, 4, 5}));
    exchanged_[i].reset();
  }

  int64_t ranks_;
  std::vector<Tensor> exchanged_;
  std::vector<Pending> pending_;
  Tensor in_order_;  // [2, batch, tokens of the sequence, kv_heads, head_dim]
};

// The sums over the ranks of the gradients of all keys and values.
class KeyGradients {
 public:
  // own: as above
  KeyGradients(const Tensor& own, Exchange& ranks)
      : ranks_(ranks),
        sums_(at::empty(own.sizes(), own.options().dtype(kernels::opmath_dtype(own)))),
        of_queries_(own.size(0)) {}

  // Of queries of this rank's part i, which comes after those of part i + 1: k, v [batch, kv_heads, end,
  // head_dim]. Then no more come for keys of that part of any rank, and their sums are being exchanged.
  void add(const Tensor& k, const Tensor& v, size_t i) {
    for (size_t part = 0; part <= i; ++part) add_to(part, k, v);
    const auto index = static_cast<int64_t>(i);
    failpoint("step.keys");
    pending_.push_back(ranks_.start_reduce_scatter_sum(sums_.select(0, index), of_queries_[i]));
  }

  // Of this rank's keys and values, [batch, kv_heads, seq, head_dim] of `dtype`.
  std::pair<Tensor, Tensor> take(at::ScalarType dtype) {
    for (Pending& pending : pending_) pending.wait();
    const Tensor by_part = sums_.permute({1, 2, 0, 3, 4, 5});
    const Tensor own = at::empty(by_part.sizes(), sums_.options().dtype(dtype)).copy_(by_part).flatten(2, 3);
    return {own.select(0, 0).transpose(1, 2), own.select(0, 1).transpose(1, 2)};
  }

 private:
  // The first call for a part has the most keys: it writes, and clears what no query of this rank sees.
  void add_to(size_t part, const Tensor& k, const Tensor& v) {
    const int64_t ranks = ranks_.size(), tokens = sums_.size(3),
                  chunks = chunks_before(k.size(2), part, ranks, tokens);
    Tensor& of_queries = of_queries_[part];
    const bool first = !of_queries.defined();
    if (first) {
      std::vector<int64_t> shape = sums_.sizes().slice(1).vec();
      shape.insert(shape.begin(), ranks);
      of_queries = at::empty(shape, sums_.options());
      if (chunks < ranks) of_queries.narrow(0, part == 0 ? chunks : 0, ranks - chunks).zero_();
    }
    const Tensor to = ranks_of_chunks(of_queries, part, chunks);
    for (const auto& [which, found] : {std::pair(0, k), {1, v}}) {
      const Tensor of_chunks =
          in_other_order(found.narrow(2, static_cast<int64_t>(part) * ranks * tokens, chunks * tokens)
                             .unflatten(2, {chunks, tokens})
                             .permute({2, 0, 3, 1, 4}),
                         part);
      first ? to.select(1, which).copy_(of_chunks) : to.select(1, which).add_(of_chunks);
    }
  }

  Exchange& ranks_;
  Tensor sums_;                     // of own keys
  std::vector<Tensor> of_queries_;  // of this rank's queries, by part: [ranks, 2, batch, ...]
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
