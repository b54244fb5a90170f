#include "models/parts/experts/products/expert_chunks.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/common/dtype.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The groups of a chunk's rows: of all experts, some of them without rows, or of the experts that have some.
// A product over rows, wgrad, takes the groups from the first expert with rows to the last.
struct GroupsOfChunk {
  GroupsOfChunk(const RowChunk& chunk, const kernels::RowGroups& groups, const std::vector<int64_t>& ends) {
    const int64_t last_row = chunk.first_row + chunk.rows;
    const auto first = static_cast<size_t>(chunk.first_expert), experts = static_cast<size_t>(chunk.experts);
    if (groups.ends.defined()) {
      all.ends = groups.ends.sub(chunk.first_row).clamp_(0, chunk.rows);
      present.ends = all.ends.narrow(0, chunk.first_expert, chunk.experts).contiguous();
      return;
    }
    int64_t before = 0;
    for (const int64_t end : ends) {
      counts.push_back(std::max<int64_t>(
          0, std::min(end, last_row) - std::max(std::exchange(before, end), chunk.first_row)));
    }
    all.counts = counts;
    present.counts = all.counts.subspan(first, experts);
  }

  std::vector<int64_t> counts;
  kernels::RowGroups all, present;
};

// The wgrad of a stack as a sum over chunks in order.
class StackGradient {
 public:
  StackGradient(const Parameter& stack, const Tensor& like)
      : sum_(stack.trainable ? at::zeros(stack.local, like.options()) : Tensor()) {}

  // of_chunk: the wgrad of the chunk's experts.
  template <typename OfChunk>
  void add(const RowChunk& chunk, const OfChunk& of_chunk) {
    if (!sum_.defined()) return;
    const Tensor terms = of_chunk();
    int64_t first = 0, end = chunk.experts;
    if (divided_.defined()) {
      divided_.add_(terms[first++]);
      if (end > 1 || !chunk.divides_last) sum_[chunk.first_expert].copy_(std::exchange(divided_, {}));
    }
    if (chunk.divides_last && !divided_.defined())
      divided_ = terms[--end].to(kernels::opmath_dtype(terms), /*non_blocking=*/false, /*copy=*/true);
    if (end > first)
      sum_.narrow(0, chunk.first_expert + first, end - first).copy_(terms.narrow(0, first, end - first));
  }

  const Tensor& sum() const { return sum_; }

 private:
  Tensor sum_;
  Tensor divided_;  // of an expert whose rows go on in the next chunk
};

struct SavedChunks : torch::CustomClassHolder {
  ExpertStacks stacks;
  ExpertProducts products;
  Activation activation{};
  std::shared_ptr<const Dispatch> dispatch;
  std::vector<int64_t> ends;
  std::vector<RowChunk> chunks;
  Tensor input;
};

struct ExpertsInChunksFunction : Function<ExpertsInChunksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*w1*/,
                        const Tensor& /*w3 or b1*/, const Tensor& w2, const OptionalTensor& /*b2*/,
                        SavedChunks* given, bool computes) {
    const SavedChunks& job = *given;
    Tensor outputs;
    if (computes) {
      const Tensor rows = gather_rows(x, *job.dispatch, Tensor());
      outputs = at::empty_like(rows);
      for (const RowChunk& chunk : job.chunks) {
        const GroupsOfChunk groups(chunk, job.dispatch->groups(), job.ends);
        const auto own = [&](const Tensor& all) { return all.narrow(0, chunk.first_row, chunk.rows); };
        Operand input(own(rows));
        const variable_list gate_up = job.products.gate_and_up(input, job.stacks, groups.all);
        Operand hidden(activate(gate_up, job.stacks, job.activation));
        own(outputs).copy_(job.products.down(hidden, job.stacks, groups.all));
      }
      outputs = sum_rows(outputs, *job.dispatch, Tensor());
    } else {
      outputs = at::empty({x.size(0), w2.size(1)}, x.options());
    }
    SavedChunks saved = std::move(*given);
    saved.input = x;
    keep_state(context, std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedChunks>(context);
    const ExpertProducts& products = saved->products;
    const ExpertStacks& stacks = saved->stacks;
    const std::vector<ParameterPtr> of_tokens = stacks.of_tokens(), of_hidden = stacks.of_hidden();
    const Tensor grad_rows = gather_rows(grads[0].contiguous(), *saved->dispatch, Tensor());
    const Tensor rows = gather_rows(std::exchange(saved->input, {}), *saved->dispatch, Tensor());
    const Tensor grad_inputs = at::empty_like(rows);
    std::vector<StackGradient> token_sums, hidden_sums;
    for (const ParameterPtr& stack : of_tokens) token_sums.emplace_back(*stack, rows);
    for (const ParameterPtr& stack : of_hidden) hidden_sums.emplace_back(*stack, rows);
    for (const RowChunk& chunk : saved->chunks) {
      const GroupsOfChunk groups(chunk, saved->dispatch->groups(), saved->ends);
      const auto own = [&](const Tensor& all) { return all.narrow(0, chunk.first_row, chunk.rows); };
      Operand input(own(rows)), grad(own(grad_rows));
      const variable_list gate_up = products.gate_and_up(input, stacks, groups.all);
      const Tensor grad_hidden = products.input_gradient(grad, *stacks.w2, groups.all);
      hidden_sums[0].add(chunk, [&] {
        Operand hidden(activate(gate_up, stacks, saved->activation));
        return products.weight_gradient(grad, hidden, groups.present);
      });
      if (stacks.clamped())
        hidden_sums[1].add(
            chunk, [&] { return bias_gradient(columns_of_bias(grad.values, *stacks.b2), groups.present); });
      const variable_list grad_gate_up = activate_backward(grad_hidden, gate_up, stacks, saved->activation);
      own(grad_inputs).copy_(products.input_gradient_of_both(grad_gate_up, stacks, groups.all));
      std::vector<Operand> readable;
      for (const Tensor& one : grad_gate_up) readable.emplace_back(readable_rows(one, groups.all));
      const variable_list gradients = products.token_stack_gradients(readable, input, stacks, groups.present);
      for (size_t i = 0; i < gradients.size(); ++i) token_sums[i].add(chunk, [&] { return gradients[i]; });
    }
    return {sum_rows(grad_inputs, *saved->dispatch, Tensor()),
            token_sums[0].sum(),
            token_sums[1].sum(),
            hidden_sums[0].sum(),
            hidden_sums.size() > 1 ? hidden_sums[1].sum() : Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

std::vector<RowChunk> cut_rows(const std::vector<int64_t>& ends, int64_t rows_of_chunk) {
  std::vector<RowChunk> chunks;
  for (int64_t row = 0; row < ends.back(); row += rows_of_chunk) {
    const int64_t end = std::min(row + rows_of_chunk, ends.back());
    const auto first = std::ranges::upper_bound(ends, row), last = std::ranges::lower_bound(ends, end);
    chunks.push_back({.first_row = row,
                      .rows = end - row,
                      .first_expert = first - ends.begin(),
                      .experts = last - first + 1,
                      .divides_last = *last > end});
  }
  return chunks;
}

Tensor experts_in_chunks(const Tensor& x, const ExpertStacks& stacks, const ExpertProducts& products,
                         Activation activation, const std::shared_ptr<const Dispatch>& dispatch,
                         std::vector<int64_t> ends, int64_t rows_of_chunk, bool computes) {
  SavedChunks job;
  job.stacks = stacks;
  job.products = products;
  job.activation = activation;
  job.dispatch = dispatch;
  job.ends = std::move(ends);
  job.chunks = cut_rows(job.ends, rows_of_chunk);
  return ExpertsInChunksFunction::apply(
      x, stacks.w1->weight, stacks.of_tokens()[1]->weight, stacks.w2->weight,
      stacks.b2 ? OptionalTensor(stacks.b2->weight) : std::nullopt, &job, computes);
}

}  // namespace hyperion::models
