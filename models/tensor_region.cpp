#include "models/tensor_region.h"

#include <algorithm>
#include <functional>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "base/error.h"
#include "models/activation_checkpoint.h"
#include "models/float8/linear_matmuls.h"
#include "models/products_in_pieces.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor as_rows(const Tensor& x) {
  return x.flatten(0, -2);
}

// The autograd node owns copies of the layers, which share their weights: the layers themselves may move or
// end while the graph lives.
struct LayersOfNode : torch::CustomClassHolder {
  std::vector<Linear> layers;

  std::vector<const Linear*> pointers() const {
    std::vector<const Linear*> all;
    for (const Linear& layer : layers) all.push_back(&layer);
    return all;
  }
};

void save_layers(AutogradContext* context, const std::vector<const Linear*>& layers) {
  auto node = c10::make_intrusive<LayersOfNode>();
  for (const Linear* layer : layers) node->layers.push_back(*layer);
  context->saved_data["layers"] = c10::IValue::make_capsule(std::move(node));
}

c10::intrusive_ptr<LayersOfNode> saved_layers(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<LayersOfNode>(context->saved_data["layers"].toCapsule());
}

// The scaling with which all of `layers` would cast the rows as one tensor; none where they do not agree.
std::optional<float8::Scaling> common_scaling(const std::vector<const Linear*>& layers,
                                              GatheredRows::Role role) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  if (float8 == nullptr ||
      !std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; }))
    return std::nullopt;
  return role == GatheredRows::Role::kInput ? float8->one_scale_of_input() : float8->one_scale_of_gradient();
}

// Whether the rows that the layers read are gathered in pieces: their products of a part of the rows must be
// those parts of their products.
bool gathers_in_pieces(const std::vector<const Linear*>& layers, GatheredRows::Role role) {
  return layers.front()->in_pieces() &&
         (common_scaling(layers, role) || std::ranges::all_of(layers, [](const Linear* layer) {
            return layer->float8() == nullptr || layer->float8()->casts_rows_alone();
          }));
}

// The rows, of those of all ranks, that are `rank`'s.
Operand part_of_rank(const Operand& all, int rank, const Exchange& ranks) {
  const int64_t tokens = (all.values.defined() ? all.values : all.rows.values).size(0) / ranks.size();
  return all.part(rank * tokens, tokens);
}

bool saves_next_product(const Linear& layer) {
  SelectiveCheckpoint* checkpoint = SelectiveCheckpointScope::active();
  return checkpoint != nullptr && checkpoint->saves_next_matmul(layer.weight()->shape);
}

// The layer of all their weights, where these lie side by side and are multiplied as they are.
std::optional<Linear> packed(const std::vector<const Linear*>& layers) {
  const ParameterPtr& pack = layers.front()->weight()->pack;
  if (pack == nullptr || !pack->weight.defined()) return std::nullopt;
  int64_t rows = 0;
  for (const Linear* layer : layers) {
    if (layer->weight()->pack != pack || layer->float8() != nullptr) return std::nullopt;
    rows += layer->weight()->rows();
  }
  if (rows != pack->rows()) return std::nullopt;
  return Linear(pack, nullptr, layers.front()->ranks(), layers.front()->in_pieces());
}

// Whether the layers' results are one product when some of them are saved: what is recomputed of it otherwise
// is at most a quarter, or all.
bool saved_as_one(const std::vector<const Linear*>& layers, const std::vector<bool>& saves) {
  int64_t rows = 0, recomputed = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    rows += layers[i]->weight()->rows();
    if (!saves[i]) recomputed += layers[i]->weight()->rows();
  }
  return 4 * recomputed <= rows || recomputed == rows;
}

// What belongs to each layer along `dim` of a tensor that has it for all. Views that autograd does not know:
// a node returns them as tensors of their own.
variable_list split_by_layers(const Tensor& all, const std::vector<const Linear*>& layers, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  variable_list parts;
  int64_t first = 0;
  for (const Linear* layer : layers) {
    parts.push_back(all.narrow(dim, first, layer->weight()->rows()));
    first += layer->weight()->rows();
  }
  return parts;
}

// [.., n_i] each -> [m, sum of n_i], without a copy where they are views of such a matrix.
Tensor side_by_side(const variable_list& grads) {
  variable_list parts;
  int64_t columns = 0;
  for (const Tensor& grad : grads) {
    parts.push_back(as_rows(grad));
    columns += grad.size(-1);
  }
  int64_t offset = parts[0].storage_offset();
  for (const Tensor& part : parts) {
    if (!part.is_alias_of(parts[0]) || part.storage_offset() != offset || part.stride(0) != columns ||
        part.stride(1) != 1)
      return at::cat(parts, 1);
    offset += part.size(1);
  }
  return parts[0].as_strided({parts[0].size(0), columns}, {columns, 1});
}

struct ColumnFunction : Function<ColumnFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList /*for autograd*/,
                               const std::vector<const Linear*>& layers) {
    save_layers(context, layers);
    const Exchange* ranks = layers.front()->ranks();
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (ranks != nullptr) shape.insert(shape.begin(), ranks->size());
    std::vector<bool> saves;
    for (const Linear* layer : layers) saves.push_back(saves_next_product(*layer));
    const std::optional<Linear> whole = saved_as_one(layers, saves) ? packed(layers) : std::nullopt;
    const std::vector<const Linear*> products = whole ? std::vector{&*whole} : layers;
    if (whole) saves = {std::ranges::any_of(saves, std::identity())};
    std::vector<size_t> computed;  // those whose results were not saved before
    for (size_t i = 0; i < products.size(); ++i)
      if (!saves[i] || !SelectiveCheckpointScope::active()->recomputing()) computed.push_back(i);
    variable_list outputs(products.size());
    std::optional<GatheredRows> rows;
    if (!computed.empty() && gathers_in_pieces(layers, GatheredRows::Role::kInput)) {
      for (const size_t i : computed) {
        shape.back() = products[i]->weight()->rows();
        outputs[i] = at::empty(shape, x.options());
      }
      rows.emplace(x, layers, GatheredRows::Role::kInput, [&](int rank, Operand& part) {
        for (const size_t i : computed) as_rows(outputs[i][rank]).copy_(products[i]->output(part));
      });
    } else if (!computed.empty()) {
      rows.emplace(x, layers, GatheredRows::Role::kInput);
      for (const size_t i : computed) {
        shape.back() = products[i]->weight()->rows();
        outputs[i] = products[i]->output(rows->wait()).view(shape);
      }
    }
    for (size_t i = 0; i < products.size(); ++i)
      outputs[i] =
          saved_or_computed(saves[i], [&]() -> SelectiveCheckpoint::Results { return {outputs[i]}; })[0];
    const bool keeps_gathered = ranks != nullptr && rows.has_value();
    context->saved_data["gathered"] = keeps_gathered;
    context->saved_data["dtype"] = x.scalar_type();
    if (!keeps_gathered)
      context->save_for_backward({x});
    else if (const Operand& all = rows->wait(); all.values.defined())
      context->save_for_backward({all.values});
    else
      context->save_for_backward({all.rows.values, all.rows.scale, all.rows.inverse});
    return whole ? split_by_layers(outputs[0], layers, -1) : outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = saved_layers(context);
    const std::vector<const Linear*> layers = node->pointers();
    Exchange* ranks = layers.front()->ranks();
    const variable_list saved = context->get_saved_variables();
    GatheredRows rows = [&] {
      if (!context->saved_data["gathered"].toBool())
        return GatheredRows(saved[0], layers, GatheredRows::Role::kInput);
      if (saved.size() == 1) return GatheredRows(Operand(saved[0]));
      return GatheredRows(
          Operand({saved[0], saved[1], saved[2]}, context->saved_data["dtype"].toScalarType()));
    }();

    const std::optional<Linear> whole = packed(layers);
    const std::vector<const Linear*> products = whole ? std::vector{&*whole} : layers;
    std::vector<Operand> operands;
    if (whole)
      operands.emplace_back(side_by_side(grads));
    else
      for (const Tensor& grad : grads) operands.emplace_back(as_rows(grad));
    const auto input_gradient = [&](std::vector<Operand>& of) {
      Tensor sum;  // added up from the last layer to the first
      for (size_t i = products.size(); i-- > 0;) {
        const Tensor term = products[i]->input_gradient(of[i]);
        if (sum.defined())
          sum.add_(term);
        else
          sum = term;
      }
      return sum;
    };
    Tensor grad_x;
    std::optional<ScatteredRows> scattered;
    if (layers.front()->in_pieces()) {
      for (size_t i = 0; i < products.size(); ++i) products[i]->prepare_gradient(operands[i]);
      grad_x = scatter_in_pieces(*ranks, [&](int rank) {
        std::vector<Operand> parts;
        for (const Operand& operand : operands) parts.push_back(part_of_rank(operand, rank, *ranks));
        return input_gradient(parts);
      });
    } else {
      grad_x = input_gradient(operands);
      if (ranks != nullptr) scattered.emplace(grad_x, *ranks);
    }

    Operand& x = rows.wait();
    variable_list weights;
    for (size_t i = 0; i < products.size(); ++i)
      weights.push_back(products[i]->weight_gradient(operands[i], x));
    if (whole) weights = split_by_layers(weights[0], layers, 0);
    variable_list result = {Tensor()};
    result.insert(result.end(), weights.begin(), weights.end());
    weights.clear();  // autograd takes a gradient that nobody else has without a copy
    result.emplace_back();
    if (scattered) grad_x = scattered->wait();
    std::vector<int64_t> shape(grads[0].sizes().begin(), grads[0].sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = grad_x.size(1);
    result[0] = grad_x.view(shape);
    return result;
  }
};

struct RowFunction : Function<RowFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& residual,
                        const Tensor& /*for autograd*/, const Linear& layer, RowResult result) {
    save_layers(context, {&layer});
    context->save_for_backward({x});
    context->saved_data["residual"] = residual.has_value();
    const bool chosen = saves_next_product(layer);
    Exchange* ranks = layer.ranks();
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = layer.weight()->rows();
    if (result == RowResult::kNotNeeded) return at::empty(shape, x.options());
    const bool save = result == RowResult::kNeededAgain && (chosen || ranks != nullptr);
    return saved_or_computed(save, [&]() -> SelectiveCheckpoint::Results {
      Operand rows(as_rows(x));
      Tensor sum;
      if (layer.in_pieces()) {
        layer.prepare_input(rows);
        sum = scatter_in_pieces(*ranks, [&](int rank) {
          Operand part = part_of_rank(rows, rank, *ranks);
          return layer.output(part);
        });
      } else {
        sum = layer.output(rows);
        if (ranks != nullptr) sum = ScatteredRows(sum, *ranks).wait();
      }
      sum = sum.view(shape);
      return {residual ? *residual + sum : sum};
    })[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = saved_layers(context);
    const Tensor x = context->get_saved_variables()[0];
    const Linear& layer = node->layers.front();
    Operand rows(as_rows(x));
    Tensor grad_x;
    std::optional<GatheredRows> gathered;
    if (gathers_in_pieces({&layer}, GatheredRows::Role::kGradient)) {
      grad_x = at::empty(x.sizes(), x.options());
      gathered.emplace(
          grads[0], std::vector{&layer}, GatheredRows::Role::kGradient,
          [&](int rank, Operand& part) { as_rows(grad_x[rank]).copy_(layer.input_gradient(part)); });
    } else {
      gathered.emplace(grads[0], std::vector{&layer}, GatheredRows::Role::kGradient);
      grad_x = layer.input_gradient(gathered->wait()).view(x.sizes());
    }
    return {grad_x, context->saved_data["residual"].toBool() ? grads[0] : Tensor(),
            layer.weight_gradient(gathered->wait(), rows), Tensor(), Tensor()};
  }
};

// The row of this rank's part of the table for each token, in the order of gathered rows; the number of rows
// of the part for tokens of other ranks' parts.
Tensor rows_of_table(const Tensor& tokens, const Parameter& table, int64_t ranks) {
  const int64_t first = box_of(table.shape, table.cuts).offset[0], rows = table.rows();
  if (tokens.is_cpu() && tokens.numel() > 0)  // as an embedding that one rank has whole refuses it
    if (const auto [least, most] = at::aminmax(tokens);
        most.item<int64_t>() >= table.shape[0] || least.item<int64_t>() < 0)
      throw_bug("a token is outside the vocabulary of {}: the smallest is {}, the largest {}", table.shape[0],
                least.item<int64_t>(), most.item<int64_t>());
  const Tensor row = in_rank_order(tokens, ranks) - first;
  return at::where(row.ge(0).logical_and_(row.lt(rows)), row, rows);
}

struct EmbeddingOverRanksFunction : Function<EmbeddingOverRanksFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& tokens, const Tensor& weight,
                        const Parameter& table, Exchange* ranks) {
    const Tensor row = rows_of_table(tokens, table, ranks->size());
    context->save_for_backward({row});
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<ExchangeOfNode>(ranks));
    // Exactly one rank has a term that is not zero.
    const Tensor partial = weight.size(0) == 0 ? at::zeros({row.size(0), weight.size(1)}, weight.options())
                                               : at::embedding(weight, row.clamp_max(weight.size(0) - 1))
                                                     .masked_fill_(row.eq(weight.size(0)).unsqueeze(1), 0);
    return ScatteredRows(partial, *ranks)
        .wait()
        .view({tokens.size(0), tokens.size(1) / ranks->size(), weight.size(1)});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor row = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    Exchange& ranks =
        *c10::static_intrusive_pointer_cast<ExchangeOfNode>(context->saved_data["ranks"].toCapsule())->ranks;
    const Tensor own = as_rows(grads[0]).contiguous();
    const Tensor all = at::empty({row.size(0), own.size(1)}, own.options());
    ranks.start_all_gather_into(all, own).wait();
    // One row more, for the tokens of other ranks' parts.
    const Tensor grad = at::embedding_dense_backward(all, row, rows + 1, /*padding_idx=*/rows, false);
    return {Tensor(), grad.narrow(0, 0, rows), Tensor(), Tensor()};
  }

 private:
  struct ExchangeOfNode : torch::CustomClassHolder {
    explicit ExchangeOfNode(Exchange* ranks) : ranks(ranks) {}
    Exchange* ranks;
  };
};

}  // namespace

GatheredRows::GatheredRows(const Tensor& shard, const std::vector<const Linear*>& layers, Role role)
    : rows_(as_rows(shard)) {
  Exchange* ranks = layers.front()->ranks();
  if (ranks == nullptr) return;
  make_room(layers, role);
  pending_ = ranks->start_all_gather_into(all_, own_);
}

GatheredRows::GatheredRows(const Tensor& shard, const std::vector<const Linear*>& layers, Role role,
                           const std::function<void(int rank, Operand& rows)>& multiply)
    : rows_(as_rows(shard)) {
  Exchange& ranks = *layers.front()->ranks();
  make_room(layers, role);
  const int64_t tokens = own_.size(0);
  gather_in_pieces(all_.unflatten(0, {ranks.size(), tokens}), own_, ranks, [&](int rank) {
    Operand part = rows_.part(rank * tokens, tokens);
    multiply(rank, part);
  });
}

// Makes of rows_, this rank's, what it sends, and rows_ those of all ranks.
void GatheredRows::make_room(const std::vector<const Linear*>& layers, Role role) {
  Exchange& ranks = *layers.front()->ranks();
  own_ = rows_.values.contiguous();
  const std::vector<int64_t> shape = {ranks.size() * own_.size(0), own_.size(1)};
  const at::ScalarType dtype = rows_.dtype;
  if (const auto scaling = common_scaling(layers, role)) {
    const float8::Quantized cast = layers.front()->float8()->cast_shard(own_, *scaling, ranks);
    own_ = cast.values.view(at::kByte);
    all_ = at::empty(shape, own_.options());
    rows_ = Operand({all_.view(scaling->dtype), cast.scale, cast.inverse}, dtype);
  } else {
    all_ = at::empty(shape, own_.options());
    rows_ = Operand(all_);
  }
}

ScatteredRows::ScatteredRows(const Tensor& rows, Exchange& ranks)
    : partial_(rows.contiguous()),
      sum_(at::empty({rows.size(0) / ranks.size(), rows.size(1)}, rows.options())),
      pending_(ranks.start_reduce_scatter_sum(sum_, partial_)) {}

std::vector<Tensor> column_linear(const Tensor& x, const std::vector<const Linear*>& layers) {
  variable_list weights;
  for (const Linear* layer : layers) weights.push_back(layer->weight()->weight);
  return ColumnFunction::apply(x, at::TensorList(weights), layers);
}

Tensor row_linear(const Tensor& x, const Linear& layer, const std::optional<Tensor>& residual,
                  RowResult result) {
  return RowFunction::apply(x, residual, layer.weight()->weight, layer, result);
}

Tensor embedding_over_ranks(const Tensor& tokens, const Parameter& table, Exchange& ranks) {
  return EmbeddingOverRanksFunction::apply(tokens, table.weight, table, &ranks);
}

Tensor in_rank_order(const Tensor& tokens, int64_t ranks) {
  return tokens.unflatten(1, {ranks, tokens.size(1) / ranks}).transpose(0, 1).flatten();
}

}  // namespace hyperion::models
