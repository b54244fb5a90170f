#include "models/float8/cast.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

namespace hyperion::float8 {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using CastOperator = std::tuple<Tensor, Tensor>(const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                                at::ScalarType);

std::tuple<Tensor, Tensor> plain_operator(const Tensor& x, const MaybeTensor& row_scale,
                                          const MaybeTensor& column_scale, at::ScalarType dtype) {
  Copies copies = plain::cast(x, row_scale.value_or(Tensor()), column_scale.value_or(Tensor()), dtype);
  return {std::move(copies.rows), std::move(copies.columns)};
}

MaybeTensor if_defined(const Tensor& x) {
  return x.defined() ? MaybeTensor(x) : std::nullopt;
}

}  // namespace

// An operator of libtorch's dispatcher: the CUDA library registers its kernel there when it is loaded, and
// nothing here needs to know of it.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def(
      "float8_cast(Tensor x, Tensor? row_scale, Tensor? column_scale, ScalarType dtype) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(hyperion, CompositeExplicitAutograd, library) {
  library.impl("float8_cast", plain_operator);
}

Copies cast(const Tensor& x, const Tensor& row_scale, const Tensor& column_scale, at::ScalarType dtype) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("hyperion::float8_cast", "").typed<CastOperator>();
  const at::AutoDispatchBelowAutograd no_gradients;
  auto [rows, columns] =
      op.call(x.detach().contiguous(), if_defined(row_scale), if_defined(column_scale), dtype);
  return {std::move(rows), std::move(columns)};
}

Copies plain::cast(const Tensor& x, const Tensor& row_scale, const Tensor& column_scale,
                   at::ScalarType dtype) {
  Copies copies;
  if (row_scale.defined()) copies.rows = saturating_cast(x, row_scale, dtype);
  if (!column_scale.defined()) return copies;
  const bool as_rows = row_scale.is_same(column_scale);
  const Tensor values = x.scalar_type() == dtype ? x
                        : as_rows                ? copies.rows
                                                 : saturating_cast(x, column_scale, dtype);
  const int64_t missing = (kRowMultiple - x.size(0) % kRowMultiple) % kRowMultiple;
  const Tensor bytes = values.view(at::kByte);
  const Tensor padded = missing == 0 ? bytes : at::constant_pad_nd(bytes, {0, 0, 0, missing});
  copies.columns = padded.t().contiguous().t().view(dtype);
  return copies;
}

Operands quantize_operands(const Tensor& x, const std::optional<Scaling>& rows,
                           const std::optional<Scaling>& columns, const PartOf& part) {
  const auto scales = [&](const Scaling& scaling) {
    return scales_of(amax(x, scaling.granularity, part), scaling.dtype, scaling.power_of_two);
  };
  const Scales of_rows = rows ? scales(*rows) : Scales();
  const Scales of_columns = !columns ? Scales() : columns == rows ? of_rows : scales(*columns);
  const Copies copies = cast(x, of_rows.scale, of_columns.scale, rows ? rows->dtype : columns->dtype);
  return {{copies.rows, of_rows.scale, of_rows.inverse},
          {copies.columns, of_columns.scale, of_columns.inverse}};
}

}  // namespace hyperion::float8
