#include "models/column_linear.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "models/activation_checkpoint.h"
#include "models/linear_node.h"
#include "models/products_in_pieces.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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
  static variable_list forward(AutogradContext* context, at::TensorList branches,
                               at::TensorList /*for autograd*/, const std::vector<const Linear*>& layers,
                               bool makes_columns) {
    const Tensor& x = branches.front();
    save_layers(context, layers);
    context->saved_data["branches"] = static_cast<int64_t>(branches.size());
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
    const Operand all = rows ? rows->wait() : Operand(as_rows(x));
    keep(context, all, rows && ranks != nullptr ? all.values : x);
    return whole ? split_by_layers(outputs[0], layers, -1) : outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = saved_layers(context);
    const std::vector<const Linear*> layers = node->pointers();
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
    const int64_t branches = context->saved_data["branches"].toInt();
    variable_list terms(branches);  // of the branches behind the first
    std::optional<ScatteredRows> scattered;
    if (branches > 1) {
      for (size_t i = products.size(); i-- > 0;) terms.at(i) = products[i]->input_gradient(operands[i]);
      grad_x = terms[0];
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
    for (size_t i = 0; i < layers.size(); ++i)
      weights[i] = return_or_add_gradient(*layers[i], std::move(weights[i]));
    if (scattered) grad_x = scattered->wait();
    std::vector<int64_t> shape(grads[0].sizes().begin(), grads[0].sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = grad_x.size(1);
    terms[0] = grad_x;
    variable_list result;
    for (const Tensor& term : terms) result.push_back(term.view(shape));
    result.insert(result.end(), weights.begin(), weights.end());
    weights.clear();                   // autograd takes a gradient that nobody else has without a copy
    result.resize(result.size() + 2);  // of the layers and makes_columns
    return result;
  }
};

}  // namespace

std::vector<Tensor> column_linear(at::TensorList x, const std::vector<const Linear*>& layers) {
  variable_list weights;
  for (const Linear* layer : layers) weights.push_back(layer->weight()->weight);
  return ColumnFunction::apply(x, at::TensorList(weights), layers, keeps_columns(layers));
}

}  // namespace hyperion::models
