#include "models/layers/row_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "models/float8/linear_matmuls.h"
#include "models/layers/chunked_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// The scaling with which all of `layers` would cast the rows as one tensor; none where they do not agree.
std::optional<float8::Scaling> common_scaling(const std::vector<const Linear*>& layers, Role role) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  if (float8 == nullptr ||
      !std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; }))
    return std::nullopt;
  return role == Role::kInput ? float8->one_scale_of_input() : float8->one_scale_of_gradient();
}

}  // namespace

Tensor in_rank_order(const Tensor& tokens, int64_t ranks) {
  return tokens.unflatten(1, {ranks, tokens.size(1) / ranks}).transpose(0, 1).flatten();
}

Gather gather_of(const std::vector<const Linear*>& layers, Role role) {
  if (layers.front()->ranks() == nullptr) return Gather::kNone;
  const bool chunks = layers.front()->chunked() &&
                      (common_scaling(layers, role) || std::ranges::all_of(layers, [](const Linear* layer) {
                         return layer->float8() == nullptr || layer->float8()->casts_rows_alone();
                       }));
  return chunks ? Gather::kChunked : Gather::kWhole;
}

GatheredRows::GatheredRows(const Tensor& shard, const std::vector<const Linear*>& layers, Role role,
                           Gather how)
    : rows_(as_rows(shard)), how_(how), ranks_(layers.front()->ranks()) {
  if (how == Gather::kNone) return;
  own_ = rows_.values.contiguous();
  const std::vector<int64_t> shape = {ranks_->size() * own_.size(0), own_.size(1)};
  if (const auto scaling = common_scaling(layers, role)) {
    const float8::Quantized cast = layers.front()->float8()->cast_shard(own_, *scaling, *ranks_);
    own_ = cast.values.view(at::kByte);
    all_ = at::empty(shape, own_.options());
    rows_ = Operand({all_.view(scaling->dtype), cast.scale, cast.inverse}, rows_.dtype);
  } else {
    all_ = at::empty(shape, own_.options());
    rows_ = Operand(all_);
  }
  if (how == Gather::kWhole) pending_ = ranks_->start_all_gather_into(all_, own_);
}

std::vector<Tensor> GatheredRows::multiply(size_t count,
                                           const std::function<Tensor(size_t, Operand&)>& product) {
  std::vector<Tensor> results(count);
  if (how_ != Gather::kChunked) {
    for (size_t i = 0; i < count; ++i) results[i] = product(i, wait());
    return results;
  }
  const int64_t tokens = own_.size(0);
  gather_chunks(all_.unflatten(0, {ranks_->size(), tokens}), own_, *ranks_, [&](int rank) {
    Operand chunk = rows_.part(rank * tokens, tokens);
    for (size_t i = 0; i < count; ++i) {
      const Tensor found = product(i, chunk);
      if (!results[i].defined()) results[i] = at::empty({all_.size(0), found.size(1)}, found.options());
      results[i].narrow(0, rank * tokens, tokens).copy_(found);
    }
  });
  return results;
}

ScatteredSum::ScatteredSum(const Tensor& rows, Exchange* ranks) {
  if (ranks == nullptr) {
    sum_ = rows;
    return;
  }
  partial_ = rows.contiguous();
  sum_ = at::empty({rows.size(0) / ranks->size(), rows.size(1)}, rows.options());
  pending_ = ranks->start_reduce_scatter_sum(sum_, partial_);
}

ScatteredSum::ScatteredSum(const Linear& layer, std::span<Operand> operands,
                           const std::function<Tensor(std::span<Operand>)>& product) {
  if (!layer.chunked()) {
    *this = ScatteredSum(product(operands), layer.ranks());
    return;
  }
  sum_ = scatter_chunks(*layer.ranks(), [&](int rank) {
    std::vector<Operand> chunks;
    for (const Operand& all : operands) {
      const int64_t tokens = all.row_count() / layer.ranks()->size();
      chunks.push_back(all.part(rank * tokens, tokens));
    }
    return product(chunks);
  });
}

}  // namespace hyperion::models
