#include "models/float8/cast.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include "base/error.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

MaybeTensor if_defined(const Tensor& x) {
  return x.defined() ? MaybeTensor(x) : std::nullopt;
}

using CastOperator = std::tuple<Tensor, Tensor>(const Tensor&, const MaybeTensor&, const MaybeTensor&,
                                                at::ScalarType);
// Both copies; scale and inverse of the rows, and of the columns.
using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using CastByAmaxOperator = SixTensors(const Tensor&, const MaybeTensor&, const MaybeTensor&, at::ScalarType,
                                      bool);

std::tuple<Tensor, Tensor> plain_operator(const Tensor& x, const MaybeTensor& row_scale,
                                          const MaybeTensor& column_scale, at::ScalarType dtype) {
  Copies copies = plain::cast(x, row_scale.value_or(Tensor()), column_scale.value_or(Tensor()), dtype);
  return {std::move(copies.rows), std::move(copies.columns)};
}

SixTensors plain_by_amax(const Tensor& x, const MaybeTensor& row_amax, const MaybeTensor& column_amax,
                         at::ScalarType dtype, bool power_of_two) {
  const Operands made = plain::cast_by_amax(x, row_amax.value_or(Tensor()), column_amax.value_or(Tensor()),
                                            dtype, power_of_two);
  return {made.rows.values,  made.columns.values, made.rows.scale,
          made.rows.inverse, made.columns.scale,  made.columns.inverse};
}

Tensor& plain_into(Tensor& out, const Tensor& x, const Tensor& scale) {
  return out.copy_(saturating_cast(x, scale, out.scalar_type()));
}

}  // namespace

// An operator of libtorch's dispatcher: the CUDA library registers its kernel there when it is loaded, and
// nothing here needs to know of it.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  constexpr auto kPlain = c10::DispatchKey::CompositeExplicitAutograd;
  library.def(
      "float8_cast(Tensor x, Tensor? row_scale, Tensor? column_scale, ScalarType dtype) -> (Tensor, Tensor)",
      torch::dispatch(kPlain, plain_operator));
  library.def(
      "float8_cast_by_amax(Tensor x, Tensor? row_amax, Tensor? column_amax, ScalarType dtype, bool "
      "power_of_two) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
      torch::dispatch(kPlain, plain_by_amax));
  library.def("float8_cast_into_(Tensor(a!) out, Tensor x, Tensor scale) -> Tensor(a!)",
              torch::dispatch(kPlain, plain_into));
}

Copies cast(const Tensor& x, const Tensor& row_scale, const Tensor& column_scale, at::ScalarType dtype) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("hyperion::float8_cast", "").typed<CastOperator>();
  const at::AutoDispatchBelowAutograd no_gradients;
  auto [rows, columns] = op.call(x.detach(), if_defined(row_scale), if_defined(column_scale), dtype);
  return {std::move(rows), std::move(columns)};
}

Operands cast_by_amax(const Tensor& x, const Tensor& row_amax, const Tensor& column_amax,
                      at::ScalarType dtype, bool power_of_two) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_cast_by_amax", "")
                             .typed<CastByAmaxOperator>();
  const at::AutoDispatchBelowAutograd no_gradients;
  auto [rows, columns, row_scale, row_inverse, column_scale, column_inverse] =
      op.call(x.detach(), if_defined(row_amax), if_defined(column_amax), dtype, power_of_two);
  return {{std::move(rows), std::move(row_scale), std::move(row_inverse)},
          {std::move(columns), std::move(column_scale), std::move(column_inverse)}};
}

void cast_into(const Tensor& out, const Tensor& x, const Tensor& scale) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_cast_into_", "")
                             .typed<Tensor&(Tensor&, const Tensor&, const Tensor&)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  Tensor to = out;
  op.call(to, x.detach(), scale);
}

Copies plain::cast(const Tensor& given, const Tensor& row_scale, const Tensor& column_scale,
                   at::ScalarType dtype) {
  const Tensor x = given.contiguous();
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

Operands plain::cast_by_amax(const Tensor& x, const Tensor& row_amax, const Tensor& column_amax,
                             at::ScalarType dtype, bool power_of_two) {
  const auto scales = [&](const Tensor& amax) {
    return amax.defined() ? scales_of(amax, dtype, power_of_two) : Scales();
  };
  const Scales of_rows = scales(row_amax);
  const Scales of_columns = column_amax.is_same(row_amax) ? of_rows : scales(column_amax);
  const Copies copies = plain::cast(x, of_rows.scale, of_columns.scale, dtype);
  return {{copies.rows, of_rows.scale, of_rows.inverse},
          {copies.columns, of_columns.scale, of_columns.inverse}};
}

Operands quantize_operands(const Tensor& x, const std::optional<Scaling>& rows,
                           const std::optional<Scaling>& columns, const PartOf& part) {
  const auto amax_of = [&](const std::optional<Scaling>& scaling) {
    return scaling ? amax(x, scaling->granularity, part) : Tensor();
  };
  const Tensor of_rows = amax_of(rows), of_columns = columns == rows ? of_rows : amax_of(columns);
  const Scaling& any = rows ? *rows : *columns;
  if (columns && (columns->dtype != any.dtype || columns->power_of_two != any.power_of_two))
    throw_bug(
        "FP8: one copy of a matrix differs from the other in its dtype or in whether scales are powers of "
        "two");
  return cast_by_amax(x, of_rows, of_columns, any.dtype, any.power_of_two);
}

}  // namespace hyperion::float8
