#include "models/row_linear.h"

#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "models/activation_checkpoint.h"
#include "models/linear_node.h"
#include "models/products_in_pieces.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct RowFunction : Function<RowFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& residual,
                        const Tensor& /*for autograd*/, const Linear& layer, RowResult result,
                        bool makes_columns) {
    save_layers(context, {&layer});
    context->saved_data["shape"] = x.sizes().vec();
    context->saved_data["residual"] = residual.has_value();
    Operand rows(as_rows(x));
    rows.makes_columns = makes_columns;
    const bool chosen = saves_next_product(layer);
    Exchange* ranks = layer.ranks();
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    if (ranks != nullptr) shape.erase(shape.begin());
    shape.back() = layer.weight()->rows();
    if (result == RowResult::kNotNeeded) {
      keep(context, rows, x);
      return at::empty(shape, x.options());
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
    return output;
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
      grad_x = layer.input_gradient(gathered->wait()).view(shape);
    }
    return {grad_x,
            context->saved_data["residual"].toBool() ? grads[0] : Tensor(),
            return_or_add_gradient(layer, layer.weight_gradient(gathered->wait(), rows)),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor row_linear(const Tensor& x, const Linear& layer, const std::optional<Tensor>& residual,
                  RowResult result) {
  return RowFunction::apply(x, residual, layer.weight()->weight, layer, result, keeps_columns({&layer}));
}

}  // namespace hyperion::models
