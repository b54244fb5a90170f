#include "models/layers/row_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "models/float8/linear_matmuls.h"
#include "models/layers/chunked_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// Returns the scaling with which all `layers` would cast the rows as one tensor; nullopt if they differ.
std::optional<float8::Scaling> common_scaling(const std::vector<const Linear*>& layers, OperandKind kind) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  if (float8 == nullptr ||
      !std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; }))
    return std::nullopt;
  return kind == OperandKind::kInput ? float8->one_scale_of_input() : float8->one_scale_of_gradient();
}

}  // namespace

Tensor in_rank_order(const Tensor& tokens, int64_t ranks) {
  return tokens.unflatten(1, {ranks, tokens.size(1) / ranks}).transpose(0, 1).flatten();
}

Gather gather_of(const std::vector<const Linear*>& layers, OperandKind kind) {
  if (layers.front()->tp_group() == nullptr) return Gather::kNone;
  const bool chunks = layers.front()->chunked() &&
                      (common_scaling(layers, kind) || std::ranges::all_of(layers, [](const Linear* layer) {
                         return layer->float8() == nullptr || layer->float8()->casts_rows_alone();
                       }));
  return chunks ? Gather::kChunked : Gather::kAllGather;
}

GatheredRows::GatheredRows(const Tensor& shard, const std::vector<const Linear*>& layers, OperandKind kind,
                           Gather how)
    : rows_(as_rows(shard)), how_(how), tp_group_(layers.front()->tp_group()) {
  if (how == Gather::kNone) return;
  shard_ = rows_.values.contiguous();
  const std::vector<int64_t> shape = {tp_group_->size() * shard_.size(0), shard_.size(1)};
  if (const auto scaling = common_scaling(layers, kind)) {
    const float8::Quantized cast = layers.front()->float8()->cast_shard(shard_, *scaling, *tp_group_);
    shard_ = cast.values.view(at::kByte);
    gathered_ = at::empty(shape, shard_.options());
    rows_ = Operand({gathered_.view(scaling->dtype), cast.scale, cast.inverse}, rows_.dtype);
  } else {
    gathered_ = at::empty(shape, shard_.options());
    rows_ = Operand(gathered_);
  }
  if (how == Gather::kAllGather) pending_ = tp_group_->start_all_gather_into(gathered_, shard_);
}

std::vector<Tensor> GatheredRows::multiply(size_t count,
                                           const std::function<Tensor(size_t, Operand&)>& product) {
  std::vector<Tensor> results(count);
  if (how_ != Gather::kChunked) {
    for (size_t i = 0; i < count; ++i) results[i] = product(i, wait());
    return results;
  }
  const int64_t tokens = shard_.size(0);
  gather_chunks(gathered_.unflatten(0, {tp_group_->size(), tokens}), shard_, *tp_group_, [&](int rank) {
    Operand chunk = rows_.part(rank * tokens, tokens);
    for (size_t i = 0; i < count; ++i) {
      const Tensor result = product(i, chunk);
      if (!results[i].defined())
        results[i] = at::empty({gathered_.size(0), result.size(1)}, result.options());
      results[i].narrow(0, rank * tokens, tokens).copy_(result);
    }
  });
  return results;
}

ScatteredSum::ScatteredSum(const Tensor& rows, Exchange* tp_group) {
  if (tp_group == nullptr) {
    sum_ = rows;
    return;
  }
  partial_ = rows.contiguous();
  sum_ = at::empty({rows.size(0) / tp_group->size(), rows.size(1)}, rows.options());
  pending_ = tp_group->start_reduce_scatter_sum(sum_, partial_);
}

ScatteredSum::ScatteredSum(const Linear& layer, std::span<Operand> operands,
                           const std::function<Tensor(std::span<Operand>)>& product) {
  if (!layer.chunked()) {
    *this = ScatteredSum(product(operands), layer.tp_group());
    return;
  }
  sum_ = scatter_chunks(*layer.tp_group(), [&](int rank) {
    std::vector<Operand> chunks;
    for (const Operand& operand : operands) {
      const int64_t tokens = operand.row_count() / layer.tp_group()->size();
      chunks.push_back(operand.part(rank * tokens, tokens));
    }
    return product(chunks);
  });
}

}  // namespace hyperion::models
