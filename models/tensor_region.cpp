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
#include "models/kernels/fused.h"
#include "models/maybe_tensor.h"
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

// Whether one FP8 copy of the rows that the layers read serves all of their weight gradients: made in forward
// with the other one, by one cast, it is what the node keeps of them. Only where backward follows.
bool keeps_columns(const std::vector<const Linear*>& layers) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  return at::GradMode::is_enabled() && float8 != nullptr && float8->casts_input_for_backward() &&
         std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; });
}

// amax: fp32, one number, or undefined.
Operand with_amax(Operand rows, const Tensor& amax) {
  if (amax.defined()) rows.amax = amax.squeeze();
  return rows;
}

// What a node keeps of the rows that its layers multiplied, for their weight gradients.
enum class Kept : int64_t { kRows, kEncodedRows, kEncodedColumns };

// values: what has rows.values, in any shape.
void keep(AutogradContext* context, const Operand& rows, const Tensor& values) {
  context->saved_data["dtype"] = rows.dtype;
  const auto save = [&](Kept kept, const variable_list& tensors) {
    context->saved_data["kept"] = static_cast<int64_t>(kept);
    context->save_for_backward(tensors);
  };
  const auto encoded = [](const float8::Quantized& copy) {
    return variable_list{copy.values, copy.scale, copy.inverse};
  };
  if (rows.columns.values.defined())
    save(Kept::kEncodedColumns, encoded(rows.columns));
  else if (rows.values.defined())
    save(Kept::kRows, {values, rows.amax});
  else
    save(Kept::kEncodedRows, encoded(rows.rows));
}

Operand kept_rows(AutogradContext* context) {
  const variable_list saved = context->get_saved_variables();
  const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
  switch (static_cast<Kept>(context->saved_data["kept"].toInt())) {
    case Kept::kRows:
      return with_amax(Operand(as_rows(saved[0])), saved[1]);
    case Kept::kEncodedRows:
      return Operand({saved[0], saved[1], saved[2]}, dtype);
    case Kept::kEncodedColumns:
      return Operand::of_columns({saved[0], saved[1], saved[2]}, dtype);
  }
  throw_bug("a node kept its rows in an unknown form");
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

// The result through which a node is told the largest magnitudes of the gradients of its others: nobody
// reads its numbers.
Tensor told_amaxes(AutogradContext* context, size_t many, const Tensor& x) {
  context->set_materialize_grads(false);  // zeros for whom nobody told
  return at::empty({static_cast<int64_t>(many)}, x.options().dtype(at::kFloat));
}

// Whether the layers are one rank's, on a GPU whose fused kernels make what they read and its gradient.
bool beside_fused_kernels(const std::vector<const Linear*>& layers, const Tensor& x) {
  return x.is_cuda() && kernels::is_fused_dtype(x) &&
         kernels::chosen_kernels() == kernels::KernelChoice::kAuto && layers.front()->ranks() == nullptr;
}

struct ColumnFunction : Function<ColumnFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList again,
                               at::TensorList /*for autograd*/, const std::vector<const Linear*>& layers,
                               bool makes_columns, const MaybeTensor& amax, bool asks_amaxes) {
    save_layers(context, layers);
    context->saved_data["again"] = static_cast<int64_t>(again.size());
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
      Operand& all = rows->wait();
      if (amax && ranks == nullptr) all = with_amax(std::move(all), *amax);
      all.makes_columns = makes_columns && all.values.defined();
      for (const size_t i : computed) {
        shape.back() = products[i]->weight()->rows();
        outputs[i] = products[i]->output(all).view(shape);
      }
    }
    for (size_t i = 0; i < products.size(); ++i)
      outputs[i] =
          saved_or_computed(saves[i], [&]() -> SelectiveCheckpoint::Results { return {outputs[i]}; })[0];
    context->saved_data["gathered"] = rows.has_value() || ranks == nullptr;
    const Operand all = rows ? rows->wait() : with_amax(Operand(as_rows(x)), amax.value_or(Tensor()));
    keep(context, all, rows && ranks != nullptr ? all.values : x);
    variable_list results = whole ? split_by_layers(outputs[0], layers, -1) : outputs;
    if (asks_amaxes) results.push_back(told_amaxes(context, layers.size(), x));
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& all_grads) {
    const auto node = saved_layers(context);
    const std::vector<const Linear*> layers = node->pointers();
    const variable_list grads(all_grads.begin(), all_grads.begin() + std::ssize(layers));
    const Tensor amaxes = all_grads.size() > layers.size() ? all_grads.back() : Tensor();
    if (std::ranges::any_of(grads, [](const Tensor& grad) { return !grad.defined(); }))
      throw_bug("backward of layers of which one's result was not used");
    Exchange* ranks = layers.front()->ranks();
    GatheredRows rows =
        context->saved_data["gathered"].toBool()
            ? GatheredRows(kept_rows(context))
            : GatheredRows(context->get_saved_variables()[0], layers, GatheredRows::Role::kInput);

    const std::optional<Linear> whole = packed(layers);
    const std::vector<const Linear*> products = whole ? std::vector{&*whole} : layers;
    std::vector<Operand> operands;
    if (whole)
      operands.emplace_back(side_by_side(grads));
    else
      for (size_t i = 0; i < grads.size(); ++i)
        operands.push_back(with_amax(Operand(as_rows(grads[i])), amaxes.defined() ? amaxes[i] : amaxes));
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
    const int64_t again = context->saved_data["again"].toInt();
    variable_list terms(again);  // of layers behind the first, where they are not added up here
    std::optional<ScatteredRows> scattered;
    if (again > 0) {
      for (size_t i = products.size(); i-- > 0;)
        (i == 0 ? grad_x : terms.at(i - 1)) = products[i]->input_gradient(operands[i]);
    } else if (layers.front()->in_pieces()) {
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
    if (scattered) grad_x = scattered->wait();
    std::vector<int64_t> shape(grads[0].sizes().begin(), grads[0].sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = grad_x.size(1);
    variable_list result = {grad_x.view(shape)};
    for (const Tensor& term : terms) result.push_back(term.defined() ? term.view(shape) : term);
    result.insert(result.end(), weights.begin(), weights.end());
    weights.clear();                   // autograd takes a gradient that nobody else has without a copy
    result.resize(result.size() + 4);  // of the layers, and of what follows them
    return result;
  }
};

struct RowFunction : Function<RowFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const std::optional<Tensor>& residual, const Tensor& /*for autograd*/,
                               const Linear& layer, RowResult result, bool makes_columns,
                               const MaybeTensor& amax, bool asks_amax) {
    save_layers(context, {&layer});
    context->saved_data["shape"] = x.sizes().vec();
    context->saved_data["residual"] = residual.has_value();
    Operand rows = with_amax(Operand(as_rows(x)), amax.value_or(Tensor()));
    rows.makes_columns = makes_columns;
    const auto results = [&](const Tensor& output) {
      variable_list all = {output};
      if (asks_amax) all.push_back(told_amaxes(context, 1, x));
      return all;
    };
    const bool chosen = saves_next_product(layer);
    Exchange* ranks = layer.ranks();
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = layer.weight()->rows();
    if (result == RowResult::kNotNeeded) {
      keep(context, rows, x);
      return results(at::empty(shape, x.options()));
    }
    const bool save = result == RowResult::kNeededAgain && (chosen || ranks != nullptr);
    Tensor output = saved_or_computed(save, [&]() -> SelectiveCheckpoint::Results {
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
    keep(context, rows, x);
    return results(output);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = saved_layers(context);
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    const Linear& layer = node->layers.front();
    Operand rows = kept_rows(context);
    Tensor grad_x;
    std::optional<GatheredRows> gathered;
    if (gathers_in_pieces({&layer}, GatheredRows::Role::kGradient)) {
      grad_x = at::empty(shape, grads[0].options());
      gathered.emplace(
          grads[0], std::vector{&layer}, GatheredRows::Role::kGradient,
          [&](int rank, Operand& part) { as_rows(grad_x[rank]).copy_(layer.input_gradient(part)); });
    } else {
      gathered.emplace(grads[0], std::vector{&layer}, GatheredRows::Role::kGradient);
      if (grads.size() > 1) gathered->wait() = with_amax(std::move(gathered->wait()), grads[1]);
      grad_x = layer.input_gradient(gathered->wait()).view(shape);
    }
    return {grad_x,
            context->saved_data["residual"].toBool() ? grads[0] : Tensor(),
            layer.weight_gradient(gathered->wait(), rows),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
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

std::vector<Tensor> column_linear(const Tensor& x, const std::vector<const Linear*>& layers,
                                  const BesideInput& beside, Tensor* gradient_amaxes) {
  variable_list weights;
  for (const Linear* layer : layers) weights.push_back(layer->weight()->weight);
  const bool asks_amaxes = gradient_amaxes != nullptr && reads_amaxes(layers, x);
  variable_list results =
      ColumnFunction::apply(x, at::TensorList(beside.again), at::TensorList(weights), layers,
                            keeps_columns(layers), if_defined(beside.amax), asks_amaxes);
  if (!asks_amaxes) return results;
  *gradient_amaxes = results.back();
  results.pop_back();
  return results;
}

bool reads_amaxes(const std::vector<const Linear*>& layers, const Tensor& x) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  return beside_fused_kernels(layers, x) && float8 != nullptr && float8->reads_amax() &&
         std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; });
}

ops::NormReaders readers_of_norm(const std::vector<const Linear*>& layers, const Tensor& x) {
  return {.layers = beside_fused_kernels(layers, x) && !packed(layers) ? std::ssize(layers) : 1,
          .want_amax = reads_amaxes(layers, x)};
}

Tensor row_linear(const Tensor& x, const Linear& layer, const std::optional<Tensor>& residual,
                  RowResult result, const Tensor& amax, Tensor* gradient_amax) {
  const bool asks_amax = gradient_amax != nullptr && reads_amaxes({&layer}, x);
  variable_list results = RowFunction::apply(x, residual, layer.weight()->weight, layer, result,
                                             keeps_columns({&layer}), if_defined(amax), asks_amax);
  if (asks_amax) *gradient_amax = results[1];
  return results[0];
}

Tensor embedding_over_ranks(const Tensor& tokens, const Parameter& table, Exchange& ranks) {
  return EmbeddingOverRanksFunction::apply(tokens, table.weight, table, &ranks);
}

Tensor in_rank_order(const Tensor& tokens, int64_t ranks) {
  return tokens.unflatten(1, {ranks, tokens.size(1) / ranks}).transpose(0, 1).flatten();
}

}  // namespace hyperion::models
