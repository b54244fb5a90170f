// Read from top to bottom: what the node keeps, column layers (forward, backward), row layers (forward,
// backward), the autograd node that calls them. models/layers/packed_linear.h multiplies packed weights as
// one.

#include "models/layers/linear_node.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#include "base/error.h"
#include "models/float8/linear_matmuls.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/node_state.h"
#include "models/layers/packed_linear.h"
#include "models/layers/row_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;

enum class LinearKind { kColumn, kRow };

struct LinearArgs {
  LinearKind kind;
  const Layers& layers;
  OutputUse use;  // of a row layer's output
  const BlockRun& run;
  // True if forward makes the column-major FP8 copy of the input too, by the same cast, and keeps it for
  // wgrad instead of the input. Only if backward follows and the copy serves the wgrad of all layers.
  bool makes_columns;
};

// ForwardOutput is the result of forward, with the rows that wgrad multiplies.
struct ForwardOutput {
  variable_list outputs;
  Operand rows;
  bool gathered = true;  // whether `rows` are those of all ranks, or of this rank only
};

// The gradients of the inputs, the weights and the biases. An input's is undefined if another copy of the
// input has its gradient. A weight's is undefined if it is frozen, already added to .grad(), or deferred; a
// bias's, if the layer has none or it is frozen.
struct LinearGradients {
  variable_list inputs, weights, biases;
};

// The state of the node between forward and backward. The layers are copies, which share their weights: the
// original layers may move or be destroyed while the graph lives.
struct SavedNode : torch::CustomClassHolder {
  LinearKind kind = LinearKind::kColumn;
  std::vector<Linear> layers;
  std::vector<int64_t> input_shape;
  size_t inputs = 1;                 // how many copies of the input forward got
  bool sums_input_gradients = true;  // see sums_input_gradients()
  // The form of the input that wgrad reads. Nothing may write it until backward: autograd does not check it,
  // because it is not a saved variable.
  std::optional<Operand> rows{};
  bool gathered = true;  // whether `rows` are those of all ranks, or of this rank only
  DeferredWeights* deferred = nullptr;

  bool defers_weights() const { return deferred != nullptr && deferred->deferring(); }
};

bool any_trainable(const Layers& layers) {
  return std::ranges::any_of(layers, [](const Linear* layer) { return layer->weight()->trainable; });
}

Layers pointers_to(const std::vector<Linear>& layers) {
  Layers pointers;
  for (const Linear& layer : layers) pointers.push_back(&layer);
  return pointers;
}

// Asks SAC whether it saves the layer's output. Every layer must ask once, in order.
bool saves_next_product(SelectiveCheckpoint* selective, const Linear& layer) {
  return selective != nullptr && selective->saves_next_matmul(layer.weight()->shape);
}

// ---- wgrad of kept rows, now or deferred.

// Returns the kept rows of all ranks; starts their all-gather if forward did not gather.
GatheredRows gather_kept_rows(Operand rows, bool gathered, const Layers& layers) {
  return gathered ? GatheredRows(std::move(rows))
                  : GatheredRows(rows.values, layers, OperandKind::kInput, Gather::kAllGather);
}

// Moves the tensors that wgrad reads from the node to its DeferredWeights.
void defer_weight_gradients(SavedNode& node, std::vector<Operand> grads) {
  for (Operand& grad : grads) grad = std::move(grad).for_weight_gradients();
  Operand rows = std::move(*node.rows);
  if (rows.values.defined()) rows.values = rows.values.detach();  // else it would keep the graph before it
  node.deferred->add([kept_layers = node.layers, gathered = node.gathered, grads = std::move(grads),
                      rows = std::move(rows)]() mutable {
    const Layers layers = pointers_to(kept_layers);
    GatheredRows input = gather_kept_rows(std::move(rows), gathered, layers);
    const variable_list gradients = weight_gradients(layers, grads, input.wait());
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) accumulate_gradient(*kept_layers[i].weight(), gradients[i]);
  });
}

// ---- Column layers: all-gather the input, multiply it by each weight.

ForwardOutput column_forward(const Tensor& x, const LinearArgs& args) {
  const Layers& layers = args.layers;
  const Exchange* tp_group = layers.front()->tp_group();

  // The products of this call: the packed one, or one per layer.
  std::vector<bool> saves;
  for (const Linear* layer : layers) saves.push_back(saves_next_product(args.run.selective, *layer));
  const std::optional<Linear> packed = saved_as_one(layers, saves) ? packed_layer(layers) : std::nullopt;
  const Layers products = packed ? Layers{&*packed} : layers;
  if (packed) saves = {std::ranges::any_of(saves, std::identity())};

  // A recomputation multiplies only where SAC has saved no output.
  std::vector<size_t> computed;
  for (size_t i = 0; i < products.size(); ++i)
    if (!saves[i] || !args.run.selective->recomputing()) computed.push_back(i);

  ForwardOutput forward{.outputs = variable_list(products.size()), .rows = Operand(as_rows(x))};
  forward.gathered = tp_group == nullptr || !computed.empty();
  if (!computed.empty()) {
    GatheredRows rows(x, layers, OperandKind::kInput, gather_of(layers, OperandKind::kInput));
    rows.operand().makes_columns = args.makes_columns && rows.operand().values.defined();
    const std::vector<Tensor> results = rows.multiply(
        computed.size(), [&](size_t i, Operand& input) { return products[computed[i]]->output(input); });
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (tp_group != nullptr) shape.insert(shape.begin(), tp_group->size());
    for (size_t i = 0; i < computed.size(); ++i) {
      shape.back() = products[computed[i]]->weight()->rows();
      forward.outputs[computed[i]] = results[i].view(shape);
    }
    forward.rows = std::move(rows.operand());
  }
  for (size_t i = 0; i < products.size(); ++i)
    forward.outputs[i] =
        saved_or_computed(args.run.selective, saves[i], [&] { return variable_list{forward.outputs[i]}; })[0];
  if (packed) forward.outputs = split_by_layers(forward.outputs[0], layers, -1);
  return forward;
}

LinearGradients column_backward(SavedNode& node, const variable_list& grads) {
  const Layers layers = pointers_to(node.layers);
  const std::optional<Linear> packed = packed_layer(layers);
  const Layers products = packed ? Layers{&*packed} : layers;
  const bool trains = any_trainable(layers), defers = trains && node.defers_weights();

  // If forward did not gather, the all-gather of the input starts here, overlapped with dgrad.
  std::optional<GatheredRows> input;
  if (trains && !defers) input.emplace(gather_kept_rows(std::move(*node.rows), node.gathered, layers));
  std::vector<Operand> operands;  // the gradient of each product's output
  if (packed)
    operands.emplace_back(side_by_side(grads));
  else
    for (const Tensor& grad : grads) operands.emplace_back(as_rows(grad));

  // dgrad: the sum over the layers is reduce-scattered, overlapped with wgrad.
  LinearGradients gradients{variable_list(node.inputs), variable_list(layers.size()),
                            bias_gradients(layers, operands)};
  std::optional<ScatteredSum> sum;
  if (node.sums_input_gradients) {
    if (layers.front()->chunked())
      for (size_t i = 0; i < products.size(); ++i) products[i]->prepare_gradient(operands[i]);
    sum.emplace(*layers.front(), operands, [&](std::span<Operand> rows) {
      Tensor total;  // from the last layer to the first
      for (size_t i = products.size(); i-- > 0;) {
        const Tensor term = products[i]->input_gradient(rows[i]);
        if (total.defined())
          total.add_(term);
        else
          total = term;
      }
      return total;
    });
  } else {
    for (size_t i = products.size(); i-- > 0;) gradients.inputs[i] = products[i]->input_gradient(operands[i]);
  }

  if (input) gradients.weights = weight_gradients(layers, operands, input->wait());
  if (sum) gradients.inputs[0] = sum->wait();
  if (defers) defer_weight_gradients(node, std::move(operands));
  return gradients;
}

// ---- Row layers: multiply the input by the weight, reduce-scatter the product, add the bias to the sum.
// Each rank adds it to its own rows, whose gradients alone it sums for the bias, in high precision.

ForwardOutput row_forward(const Tensor& x, const LinearArgs& args) {
  const Linear& layer = *args.layers.front();
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());  // of the output
  if (layer.tp_group() != nullptr) shape.erase(shape.begin());
  shape.back() = layer.weight()->rows();

  ForwardOutput forward{.outputs = {}, .rows = Operand(as_rows(x))};
  const bool chosen = saves_next_product(args.run.selective, layer);
  if (args.use == OutputUse::kUnused) {
    forward.outputs = {at::empty(shape, x.options())};
    return forward;
  }
  forward.rows.makes_columns = args.makes_columns;
  const bool save = args.use == OutputUse::kRecomputed && (chosen || layer.tp_group() != nullptr);
  forward.outputs = saved_or_computed(args.run.selective, save, [&] {
    if (layer.chunked()) layer.prepare_input(forward.rows);
    const bool scatters = layer.tp_group() != nullptr;
    ScatteredSum sum(layer, std::span(&forward.rows, 1), [&](std::span<Operand> rows) {
      return scatters ? layer.product(rows[0]) : layer.output(rows[0]);
    });
    Tensor output = sum.wait();
    if (scatters && layer.bias() != nullptr) output.add_(layer.bias()->weight);
    return variable_list{output.view(shape)};
  });
  return forward;
}

LinearGradients row_backward(SavedNode& node, const Tensor& grad) {
  const Linear& layer = node.layers.front();
  GatheredRows gradient(grad, {&layer}, OperandKind::kGradient, gather_of({&layer}, OperandKind::kGradient));
  LinearGradients gradients{{}, variable_list(1), {layer.bias_gradient(as_rows(grad))}};
  gradients.inputs = gradient.multiply(1, [&](size_t, Operand& rows) { return layer.input_gradient(rows); });
  if (!layer.weight()->trainable) return gradients;
  std::vector<Operand> operands;
  operands.push_back(std::move(gradient.wait()));
  if (node.defers_weights())
    defer_weight_gradients(node, std::move(operands));
  else
    gradients.weights = weight_gradients({&layer}, operands, *node.rows);
  return gradients;
}

// ---- The node.

// Returns whether the node itself sums the input gradients of its layers. Otherwise each copy of the input
// gets the gradient of its layer, and the fused backward kernel of the norm sums them. That needs several
// copies on a GPU, of layers that are neither packed nor sharded.
bool sums_input_gradients(at::TensorList x, const Layers& layers) {
  const bool norm_sums = x.size() > 1 && x.front().is_cuda() && kernels::is_fused_dtype(x.front()) &&
                         !kernels::table().add_rms_norm_backward.is_plain(x.front().device());
  return !norm_sums || layers.front()->tp_group() != nullptr || packed_layer(layers);
}

// Returns a parameter's gradient for autograd. A gradient of another dtype than the parameter's is added to
// .grad() here and returned as undefined, because autograd would round it to the parameter's dtype.
Tensor return_or_add_gradient(const Parameter& parameter, Tensor gradient) {
  if (!gradient.defined() || gradient.scalar_type() == parameter.weight.scalar_type()) return gradient;
  accumulate_gradient(parameter, gradient);
  return {};
}

struct LinearNode : Function<LinearNode> {
  static variable_list forward(AutogradContext* context, at::TensorList x, at::TensorList /*for autograd*/,
                               const LinearArgs& args) {
    const bool column = args.kind == LinearKind::kColumn;
    ForwardOutput forward = column ? column_forward(x.front(), args) : row_forward(x.front(), args);
    auto node = c10::make_intrusive<SavedNode>();
    node->kind = args.kind;
    for (const Linear* layer : args.layers) node->layers.push_back(*layer);
    node->input_shape = x.front().sizes().vec();
    node->inputs = x.size();
    node->sums_input_gradients = sums_input_gradients(x, args.layers);
    node->rows = any_trainable(args.layers)
                     ? std::move(forward.rows).for_weight_gradients()
                     : Operand::from_columns({}, forward.rows.dtype);  // frozen: nothing is kept
    node->gathered = forward.gathered;
    node->deferred = args.run.deferred;
    // Unless the values are gathered rows, the node keeps x itself: its rows may be a copy.
    const bool exchanged = column && forward.gathered && args.layers.front()->tp_group() != nullptr;
    if (at::Tensor& values = node->rows->values; values.defined() && !exchanged) values = x.front();
    context->saved_data["node"] = c10::IValue::make_capsule(std::move(node));
    return std::move(forward.outputs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto node = c10::static_intrusive_pointer_cast<SavedNode>(context->saved_data["node"].toCapsule());
    if (!node->rows) throw_bug("a second backward through linear layers, which kept nothing for it");
    if (at::Tensor& values = node->rows->values; values.defined()) values = as_rows(values);
    LinearGradients gradients =
        node->kind == LinearKind::kColumn ? column_backward(*node, grads) : row_backward(*node, grads[0]);
    node->rows.reset();  // frees the rows before autograd runs the next node

    variable_list in_order;  // of forward's arguments: inputs, weights and biases, args
    for (const Tensor& gradient : gradients.inputs)
      in_order.push_back(gradient.defined() ? gradient.view(node->input_shape) : gradient);
    // Moved: autograd keeps a gradient without a copy if nothing else owns it.
    for (size_t i = 0; i < node->layers.size(); ++i)
      in_order.push_back(return_or_add_gradient(*node->layers[i].weight(), std::move(gradients.weights[i])));
    for (size_t i = 0; i < node->layers.size(); ++i)
      if (const ParameterPtr& bias = node->layers[i].bias())
        in_order.push_back(return_or_add_gradient(*bias, std::move(gradients.biases[i])));
    in_order.emplace_back();
    return in_order;
  }
};

variable_list run_node(at::TensorList x, const Layers& layers, LinearKind kind, OutputUse use,
                       const BlockRun& run) {
  if (x.size() != 1 && x.size() != layers.size())
    throw_bug("an input was given {} times to {} linear layers, expected once, or once for each", x.size(),
              layers.size());
  variable_list parameters;
  for (const Linear* layer : layers) parameters.push_back(layer->weight()->weight);
  for (const Linear* layer : layers)
    if (layer->bias() != nullptr) parameters.push_back(layer->bias()->weight);
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  const bool makes_columns =
      at::GradMode::is_enabled() && float8 != nullptr && float8->casts_input_for_backward() &&
      any_trainable(layers) &&
      std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; });
  return LinearNode::apply(x, at::TensorList(parameters), LinearArgs{kind, layers, use, run, makes_columns});
}

}  // namespace

std::vector<Tensor> column_linear(at::TensorList x, const Layers& layers, const BlockRun& run) {
  return run_node(x, layers, LinearKind::kColumn, OutputUse::kRecomputed, run);
}

Tensor row_linear(const Tensor& x, const Linear& layer, OutputUse use, const BlockRun& run) {
  const bool sequences = layer.tp_group() != nullptr && x.dim() == 3;
  const Tensor rows = sequences ? x.unflatten(1, {layer.tp_group()->size(), -1}).transpose(0, 1) : x;
  return run_node(rows, {&layer}, LinearKind::kRow, use, run)[0];
}

}  // namespace hyperion::models
