#include "models/layers/linear_node.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "base/error.h"
#include "models/float8/linear_matmuls.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/row_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Layers = std::vector<const Linear*>;

enum class Form { kColumn, kRow };

struct Call {
  Form form;
  const Layers& layers;
  RowResult result;  // of the row form
  const BlockRun& run;
  // Whether one FP8 copy of the rows that the layers read serves all of their weight gradients: made in
  // forward with the other one, by one cast, it is what the node keeps of them. Only where backward follows.
  bool makes_columns;
};

// What the node keeps for its backward. The layers are copies, which share their weights: the layers
// themselves may move or end while the graph lives.
struct SavedNode : torch::CustomClassHolder {
  Form form = Form::kColumn;
  std::vector<Linear> layers;
  std::vector<int64_t> input_shape;
  size_t inputs = 1;           // how often the input was given
  bool adds_up_inputs = true;  // whether the gradients of those are added up here
  // Of the rows that were multiplied what weight gradients read. They must not be written until backward:
  // autograd, which did not save them, does not check.
  std::optional<Operand> input{};
  bool gathered = true;  // whether `input` is of all ranks, else of this one alone
  DeferredWeights* deferred = nullptr;

  bool defers_weights() const { return deferred != nullptr && deferred->deferring(); }
};

// What forward gives, and what it leaves of the rows that were multiplied.
struct Forward {
  variable_list results;
  Operand input;
  bool gathered = true;
};

bool any_trainable(const Layers& layers) {
  return std::ranges::any_of(layers, [](const Linear* layer) { return layer->weight()->trainable; });
}

Layers pointers_to(const std::vector<Linear>& layers) {
  Layers all;
  for (const Linear& layer : layers) all.push_back(&layer);
  return all;
}

// The layer of all their weights, where these lie side by side and are multiplied as they are.
std::optional<Linear> layer_of_all(const Layers& layers) {
  const ParameterPtr& pack = layers.front()->weight()->pack;
  if (pack == nullptr || !pack->weight.defined()) return std::nullopt;
  int64_t rows = 0;
  for (const Linear* layer : layers) {
    if (layer->weight()->pack != pack || layer->float8() != nullptr) return std::nullopt;
    rows += layer->weight()->rows();
  }
  if (rows != pack->rows()) return std::nullopt;
  return Linear(pack, nullptr, layers.front()->ranks(), layers.front()->chunked());
}

// Whether the layers' results are one product when some of them are saved: what is recomputed of it otherwise
// is at most a quarter, or all.
bool saved_as_one(const Layers& layers, const std::vector<bool>& saves) {
  int64_t rows = 0, recomputed = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    rows += layers[i]->weight()->rows();
    if (!saves[i]) recomputed += layers[i]->weight()->rows();
  }
  return 4 * recomputed <= rows || recomputed == rows;
}

// What belongs to each layer along `dim` of a tensor that has it for all. Views that autograd does not know:
// a node returns them as tensors of their own.
variable_list split_by_layers(const Tensor& all, const Layers& layers, int64_t dim) {
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

bool saves_next_product(SelectiveCheckpoint* selective, const Linear& layer) {
  return selective != nullptr && selective->saves_next_matmul(layer.weight()->shape);
}

// The .grad() that the layers' weights have of microbatches before, as one matrix; undefined where one has
// none or they do not lie side by side.
Tensor sum_of_microbatches(const Layers& layers) {
  const Tensor first = layers.front()->weight()->weight.grad();
  if (layers.size() == 1 || !first.defined()) return first;
  int64_t rows = 0;
  for (const Linear* layer : layers) {
    const Tensor sum = layer->weight()->weight.grad();
    if (!sum.defined() || !sum.is_alias_of(first) || !sum.is_contiguous() ||
        sum.storage_offset() != first.storage_offset() + rows * first.size(1))
      return {};
    rows += sum.size(0);
  }
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1});
}

// The weight gradient of one product, that of `layers`; undefined where the weight is frozen, or the product
// has added it to their sum of microbatches before.
Tensor weight_gradient_of(const Linear& product, const Layers& layers, Operand& grad, Operand& x) {
  if (!product.weight()->trainable) return {};
  Tensor sum = sum_of_microbatches(layers);
  if (!product.multiplies_into(sum)) return product.weight_gradient(grad, x);
  product.add_weight_gradient(sum, grad, x);
  return {};
}

// Of each layer, undefined as above. grads: of each product's result.
variable_list weight_gradients(const Layers& layers, std::vector<Operand>& grads, Operand& x) {
  if (const std::optional<Linear> all = layer_of_all(layers)) {
    const Tensor of_all = weight_gradient_of(*all, layers, grads[0], x);
    return of_all.defined() ? split_by_layers(of_all, layers, 0) : variable_list(layers.size());
  }
  variable_list gradients;
  for (size_t i = 0; i < layers.size(); ++i)
    gradients.push_back(weight_gradient_of(*layers[i], {layers[i]}, grads[i], x));
  return gradients;
}

// The rows that a node has kept, of all ranks.
GatheredRows rows_of_all(Operand kept, bool gathered, const Layers& layers) {
  return gathered ? GatheredRows(std::move(kept))
                  : GatheredRows(kept.values, layers, Role::kInput, Gather::kWhole);
}

// Takes what weight_gradients() reads out of the node.
void defer_weight_gradients(SavedNode& node, std::vector<Operand> grads) {
  for (Operand& grad : grads) grad = std::move(grad).for_weight_gradients();
  Operand input = std::move(*node.input);
  if (input.values.defined()) input.values = input.values.detach();  // it would keep the graph before it
  node.deferred->add([layers = node.layers, gathered = node.gathered, grads = std::move(grads),
                      input = std::move(input)]() mutable {
    const Layers all = pointers_to(layers);
    GatheredRows rows = rows_of_all(std::move(input), gathered, all);
    const variable_list found = weight_gradients(all, grads, rows.wait());
    for (size_t i = 0; i < found.size(); ++i)
      if (found[i].defined()) layers[i].accumulate(found[i]);
  });
}

// A weight's gradient as a node returns it to autograd: undefined where it was added to .grad() here, because
// autograd would round it to the weight's dtype.
Tensor return_or_add_gradient(const Linear& layer, Tensor gradient) {
  if (!gradient.defined() || gradient.scalar_type() == layer.weight()->weight.scalar_type()) return gradient;
  layer.accumulate(gradient);
  return {};
}

Forward column_forward(const Tensor& x, const Call& call) {
  const Layers& layers = call.layers;
  const Exchange* ranks = layers.front()->ranks();
  std::vector<bool> saves;
  for (const Linear* layer : layers) saves.push_back(saves_next_product(call.run.selective, *layer));
  const std::optional<Linear> all_layers = saved_as_one(layers, saves) ? layer_of_all(layers) : std::nullopt;
  const Layers products = all_layers ? Layers{&*all_layers} : layers;
  if (all_layers) saves = {std::ranges::any_of(saves, std::identity())};
  std::vector<size_t> computed;  // those whose results were not saved before
  for (size_t i = 0; i < products.size(); ++i)
    if (!saves[i] || !call.run.selective->recomputing()) computed.push_back(i);

  Forward forward{.results = variable_list(products.size()), .input = Operand(as_rows(x))};
  forward.gathered = ranks == nullptr || !computed.empty();
  if (!computed.empty()) {
    GatheredRows rows(x, layers, Role::kInput, gather_of(layers, Role::kInput));
    rows.operand().makes_columns = call.makes_columns && rows.operand().values.defined();
    const std::vector<Tensor> found = rows.multiply(
        computed.size(), [&](size_t i, Operand& all) { return products[computed[i]]->output(all); });
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (ranks != nullptr) shape.insert(shape.begin(), ranks->size());
    for (size_t i = 0; i < computed.size(); ++i) {
      shape.back() = products[computed[i]]->weight()->rows();
      forward.results[computed[i]] = found[i].view(shape);
    }
    forward.input = std::move(rows.operand());
  }
  for (size_t i = 0; i < products.size(); ++i)
    forward.results[i] =
        saved_or_computed(call.run.selective, saves[i], [&] { return variable_list{forward.results[i]}; })[0];
  if (all_layers) forward.results = split_by_layers(forward.results[0], layers, -1);
  return forward;
}

Forward row_forward(const Tensor& x, const Call& call) {
  const Linear& layer = *call.layers.front();
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  if (layer.ranks() != nullptr) shape.erase(shape.begin());
  shape.back() = layer.weight()->rows();
  Forward forward{.results = {}, .input = Operand(as_rows(x))};
  const bool chosen = saves_next_product(call.run.selective, layer);
  if (call.result == RowResult::kNotNeeded) {
    forward.results = {at::empty(shape, x.options())};
    return forward;
  }
  forward.input.makes_columns = call.makes_columns;
  const bool save = call.result == RowResult::kNeededAgain && (chosen || layer.ranks() != nullptr);
  forward.results = saved_or_computed(call.run.selective, save, [&] {
    if (layer.chunked()) layer.prepare_input(forward.input);
    ScatteredSum sum(layer, std::span(&forward.input, 1),
                     [&](std::span<Operand> rows) { return layer.output(rows[0]); });
    return variable_list{sum.wait().view(shape)};
  });
  return forward;
}

// What backward finds: of each input that was given (undefined: none of its own), and of each weight
// (undefined: frozen, added to .grad(), or left for later).
struct Gradients {
  variable_list of_inputs, of_weights;
};

Gradients column_backward(SavedNode& node, const variable_list& grads) {
  const Layers layers = pointers_to(node.layers);
  const std::optional<Linear> all_layers = layer_of_all(layers);
  const Layers products = all_layers ? Layers{&*all_layers} : layers;
  const bool trains = any_trainable(layers), defers = trains && node.defers_weights();
  std::optional<GatheredRows> input;
  if (trains && !defers) input.emplace(rows_of_all(std::move(*node.input), node.gathered, layers));
  std::vector<Operand> operands;
  if (all_layers)
    operands.emplace_back(side_by_side(grads));
  else
    for (const Tensor& grad : grads) operands.emplace_back(as_rows(grad));

  Gradients gradients{variable_list(node.inputs), variable_list(layers.size())};
  std::optional<ScatteredSum> sum;
  if (node.adds_up_inputs) {
    if (layers.front()->chunked())
      for (size_t i = 0; i < products.size(); ++i) products[i]->prepare_gradient(operands[i]);
    sum.emplace(*layers.front(), operands, [&](std::span<Operand> of) {
      Tensor added;  // from the last layer to the first
      for (size_t i = products.size(); i-- > 0;) {
        const Tensor term = products[i]->input_gradient(of[i]);
        if (added.defined())
          added.add_(term);
        else
          added = term;
      }
      return added;
    });
  } else {
    for (size_t i = products.size(); i-- > 0;)
      gradients.of_inputs[i] = products[i]->input_gradient(operands[i]);
  }
  if (input) gradients.of_weights = weight_gradients(layers, operands, input->wait());
  if (sum) gradients.of_inputs[0] = sum->wait();
  if (defers) defer_weight_gradients(node, std::move(operands));
  return gradients;
}

Gradients row_backward(SavedNode& node, const Tensor& grad) {
  const Linear& layer = node.layers.front();
  GatheredRows gradient(grad, {&layer}, Role::kGradient, gather_of({&layer}, Role::kGradient));
  Gradients gradients{{}, variable_list(1)};
  gradients.of_inputs =
      gradient.multiply(1, [&](size_t, Operand& rows) { return layer.input_gradient(rows); });
  if (!layer.weight()->trainable) return gradients;
  if (node.defers_weights())
    defer_weight_gradients(node, {std::move(gradient.wait())});
  else
    gradients.of_weights = {weight_gradient_of(layer, {&layer}, gradient.wait(), *node.input)};
  return gradients;
}

struct LinearNode : Function<LinearNode> {
  static variable_list forward(AutogradContext* context, at::TensorList x, at::TensorList /*for autograd*/,
                               const Call& call) {
    Forward forward =
        call.form == Form::kColumn ? column_forward(x.front(), call) : row_forward(x.front(), call);
    auto node = c10::make_intrusive<SavedNode>();
    node->form = call.form;
    for (const Linear* layer : call.layers) node->layers.push_back(*layer);
    node->input_shape = x.front().sizes().vec();
    node->inputs = x.size();
    // Several layers that are neither one product nor divided: the kernel of the norm's backward adds them
    // up.
    node->adds_up_inputs = x.size() == 1 || !x.front().is_cuda() || !kernels::is_fused_dtype(x.front()) ||
                           kernels::table().add_rms_norm_backward.is_plain(x.front().device()) ||
                           call.layers.front()->ranks() != nullptr || layer_of_all(call.layers);
    node->input = any_trainable(call.layers) ? std::move(forward.input).for_weight_gradients()
                                             : Operand::from_columns({}, forward.input.dtype);  // nothing
    node->gathered = forward.gathered;
    node->deferred = call.run.deferred;
    const bool exchanged =
        call.form == Form::kColumn && forward.gathered && call.layers.front()->ranks() != nullptr;
    if (at::Tensor& values = node->input->values; values.defined() && !exchanged)
      values = x.front();  // as it was given, for its rows may be a copy
    context->saved_data["node"] = c10::IValue::make_capsule(std::move(node));
    return std::move(forward.results);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = c10::static_intrusive_pointer_cast<SavedNode>(context->saved_data["node"].toCapsule());
    if (!node->input) throw_bug("a second backward through linear layers, which kept nothing for it");
    if (at::Tensor& values = node->input->values; values.defined()) values = as_rows(values);
    Gradients found =
        node->form == Form::kColumn ? column_backward(*node, grads) : row_backward(*node, grads[0]);
    node->input.reset();     // frees the rows before the node before this one runs
    variable_list in_order;  // of forward's arguments: inputs, weights, call
    for (const Tensor& gradient : found.of_inputs)
      in_order.push_back(gradient.defined() ? gradient.view(node->input_shape) : gradient);
    // Moved: autograd keeps a tensor without a copy where it has no other owner.
    for (size_t i = 0; i < node->layers.size(); ++i)
      in_order.push_back(return_or_add_gradient(node->layers[i], std::move(found.of_weights[i])));
    in_order.emplace_back();
    return in_order;
  }
};

variable_list run_node(at::TensorList x, const Layers& layers, Form form, RowResult result,
                       const BlockRun& run) {
  if (x.size() != 1 && x.size() != layers.size())
    throw_bug("an input was given {} times to {} linear layers, expected once, or once for each", x.size(),
              layers.size());
  variable_list weights;
  for (const Linear* layer : layers) weights.push_back(layer->weight()->weight);
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  const bool makes_columns =
      at::GradMode::is_enabled() && float8 != nullptr && float8->casts_input_for_backward() &&
      any_trainable(layers) &&
      std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; });
  return LinearNode::apply(x, at::TensorList(weights), Call{form, layers, result, run, makes_columns});
}

}  // namespace

std::vector<Tensor> column_linear(at::TensorList x, const Layers& layers, const BlockRun& run) {
  return run_node(x, layers, Form::kColumn, RowResult::kNeededAgain, run);
}

Tensor row_linear(const Tensor& x, const Linear& layer, RowResult result, const BlockRun& run) {
  const bool sequences = layer.ranks() != nullptr && x.dim() == 3;
  const Tensor rows = sequences ? x.unflatten(1, {layer.ranks()->size(), -1}).transpose(0, 1) : x;
  return run_node(rows, {&layer}, Form::kRow, result, run)[0];
}

}  // namespace hyperion::models
