#include "models/linear_node.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/activation_checkpoint.h"
#include "models/float8/linear_matmuls.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"

namespace hyperion::models {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

// What a node keeps of the rows that its layers multiplied, for their weight gradients.
enum class Kept : int64_t { kRows, kEncodedRows, kEncodedColumns };

}  // namespace

void save_layers(AutogradContext* context, const std::vector<const Linear*>& layers) {
  auto node = c10::make_intrusive<LayersOfNode>();
  for (const Linear* layer : layers) node->layers.push_back(*layer);
  context->saved_data["layers"] = c10::IValue::make_capsule(std::move(node));
}

c10::intrusive_ptr<LayersOfNode> saved_layers(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<LayersOfNode>(context->saved_data["layers"].toCapsule());
}

std::optional<float8::Scaling> common_scaling(const std::vector<const Linear*>& layers,
                                              GatheredRows::Role role) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  if (float8 == nullptr ||
      !std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; }))
    return std::nullopt;
  return role == GatheredRows::Role::kInput ? float8->one_scale_of_input() : float8->one_scale_of_gradient();
}

bool gathers_in_pieces(const std::vector<const Linear*>& layers, GatheredRows::Role role) {
  return layers.front()->in_pieces() &&
         (common_scaling(layers, role) || std::ranges::all_of(layers, [](const Linear* layer) {
            return layer->float8() == nullptr || layer->float8()->casts_rows_alone();
          }));
}

Operand part_of_rank(const Operand& all, int rank, const Exchange& ranks) {
  const int64_t tokens = (all.values.defined() ? all.values : all.rows.values).size(0) / ranks.size();
  return all.part(rank * tokens, tokens);
}

bool keeps_columns(const std::vector<const Linear*>& layers) {
  const float8::LinearMatmuls* float8 = layers.front()->float8();
  return at::GradMode::is_enabled() && float8 != nullptr && float8->casts_input_for_backward() &&
         std::ranges::all_of(layers, [&](const Linear* layer) { return layer->float8() == float8; });
}

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
    save(Kept::kRows, {values});
  else
    save(Kept::kEncodedRows, encoded(rows.rows));
}

Operand kept_rows(AutogradContext* context) {
  const variable_list saved = context->get_saved_variables();
  const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
  switch (static_cast<Kept>(context->saved_data["kept"].toInt())) {
    case Kept::kRows:
      return Operand(as_rows(saved[0]));
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

Tensor return_or_add_gradient(const Linear& layer, Tensor gradient) {
  if (gradient.scalar_type() == layer.weight()->weight.scalar_type()) return gradient;
  layer.accumulate(gradient);
  return {};
}

int64_t branches_of_input(const std::vector<const Linear*>& layers, const Tensor& x) {
  const auto& norm_backward = kernels::table().add_rms_norm_backward;
  const bool fused_on_gpu = x.is_cuda() && kernels::is_fused_dtype(x) && !norm_backward.is_plain(x.device());
  return fused_on_gpu && layers.front()->ranks() == nullptr && !packed(layers) ? std::ssize(layers) : 1;
}

}  // namespace hyperion::models
