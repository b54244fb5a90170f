#include "models/layers/token_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>

#include "base/error.h"
#include "models/layers/node_state.h"
#include "models/layers/ops.h"
#include "models/layers/row_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// Returns, in the order of gathered rows, the row of each token in this rank's shard of the table; tokens of
// other shards get the number of rows of this shard.
Tensor rows_of_table(const Tensor& tokens, const Parameter& table, int64_t ranks) {
  const int64_t first = box_of(table.shape, table.cuts).offset[0], rows = table.rows();
  if (tokens.is_cpu() && tokens.numel() > 0)  // a replicated embedding refuses it too
    if (const auto [least, most] = at::aminmax(tokens);
        most.item<int64_t>() >= table.shape[0] || least.item<int64_t>() < 0)
      throw_bug("a token is outside the vocabulary of {}: the smallest is {}, the largest {}", table.shape[0],
                least.item<int64_t>(), most.item<int64_t>());
  const Tensor row = in_rank_order(tokens, ranks) - first;
  return at::where(row.ge(0).logical_and_(row.lt(rows)), row, rows);
}

struct EmbeddingOverRanksFunction : Function<EmbeddingOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& tokens, const Tensor& weight,
                        const Parameter& table, Exchange* tp_group) {
    const Tensor row = rows_of_table(tokens, table, tp_group->size());
    context->save_for_backward({row});
    context->saved_data["rows"] = weight.size(0);
    keep_state(context, ExchangeOfNode(tp_group));
    // Exactly one rank has a term that is not zero.
    const Tensor partial = weight.size(0) == 0 ? at::zeros({row.size(0), weight.size(1)}, weight.options())
                                               : at::embedding(weight, row.clamp_max(weight.size(0) - 1))
                                                     .masked_fill_(row.eq(weight.size(0)).unsqueeze(1), 0);
    return ScatteredSum(partial, tp_group)
        .wait()
        .view({tokens.size(0), tokens.size(1) / tp_group->size(), weight.size(1)});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor row = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    Exchange& tp_group = *kept_state<ExchangeOfNode>(context)->group;
    const Tensor shard = as_rows(grads[0]).contiguous();
    const Tensor gathered = at::empty({row.size(0), shard.size(1)}, shard.options());
    tp_group.start_all_gather_into(gathered, shard).wait();
    // One more row takes the gradients of other shards' tokens.
    const Tensor grad = at::embedding_dense_backward(gathered, row, rows + 1, /*padding_idx=*/rows, false);
    return {Tensor(), grad.narrow(0, 0, rows), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor TokenEmbedding::forward(const Tensor& tokens) const {
  return tp_group_ == nullptr ? ops::embedding(tokens, table_->weight)
                              : EmbeddingOverRanksFunction::apply(tokens, table_->weight, *table_, tp_group_);
}

}  // namespace hyperion::models
