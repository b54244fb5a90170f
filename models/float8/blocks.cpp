#include "models/float8/blocks.h"

#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "base/error.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;
// Both copies, and the scales of the rows and of the columns.
using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr int kBias = 127, kNan = 255, kMantissaBits = 23;
constexpr int kLargestExponent = 8;  // of e4m3

struct Blocks {
  Tensor values, scale;
};

// Returns the bits of the scale 2^(floor(log2(largest)) - 8), and the numbers before they are cast.
std::pair<Tensor, Tensor> rounded_down(const Tensor& numbers, const Tensor& largest) {
  const Tensor exponent = largest.view(at::kInt).bitwise_right_shift(kMantissaBits).bitwise_and_(0xff);
  const Tensor bits = at::where(largest.isnan(), kNan,
                                exponent.sub_(kLargestExponent).clamp_(0, kNan).to(at::kByte).to(at::kInt));
  const Tensor scale = bits.bitwise_left_shift(kMantissaBits).view(at::kFloat);
  return {bits, numbers / scale.clamp_min(std::numeric_limits<float>::min())};
}

// Returns the same for the scale 2^ceil(log2(largest / 448)).
std::pair<Tensor, Tensor> rounded_up(const Tensor& numbers, const Tensor& largest) {
  const Tensor ratio = largest / largest_of(kE4m3);
  const Tensor exponent = ratio.log2().ceil_().clamp_(-kBias, kBias).add_(kBias);
  const Tensor finite = ratio.isfinite();
  const Tensor bits = at::where(finite, exponent, at::where(ratio.isnan(), 255.0F, 254.0F)).to(at::kInt);
  const Tensor factor =
      at::where(ratio.isnan(), ratio, at::where(bits.eq(0), 1.0F, at::exp2(kBias - bits.to(at::kFloat))));
  return {bits, numbers * factor};
}

// Returns x [m, n] in blocks along its rows.
Blocks blocks_of_rows(const Tensor& x, bool rounds_up) {
  const Tensor blocks = x.contiguous().view({x.size(0), x.size(1) / kBlock, kBlock});
  const Tensor largest = blocks.abs().amax(-1, /*keepdim=*/true).to(at::kFloat);
  const Tensor numbers = blocks.to(at::kFloat);
  const auto [bits, scaled] = rounds_up ? rounded_up(numbers, largest) : rounded_down(numbers, largest);
  const double limit = largest_of(kE4m3);
  return {scaled.clamp(-limit, limit).to(kE4m3).view(x.sizes()), bits.squeeze(-1).to(at::kByte).view(kE8m0)};
}

FourTensors plain_cast(const Tensor& x, bool rows, bool columns, bool rounds_up) {
  Blocks by_row, by_column;
  if (rows) by_row = blocks_of_rows(x, rounds_up);
  if (columns) {
    const int64_t missing = (kBlock - x.size(0) % kBlock) % kBlock;
    const Tensor padded = missing == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, missing});
    const Blocks of_transposed = blocks_of_rows(padded.t(), rounds_up);
    by_column = {of_transposed.values.t(), of_transposed.scale.t()};
  }
  return {by_row.values, by_column.values, by_row.scale, by_column.scale};
}

void check(const Tensor& x, const std::optional<Scaling>& rows, const std::optional<Scaling>& columns) {
  const bool agree = !rows || !columns || rows->rounds_up == columns->rounds_up;
  if (!agree || (rows && (rows->granularity != Granularity::kRowBlock || x.size(1) % kBlock != 0)) ||
      (columns && columns->granularity != Granularity::kColumnBlock))
    throw_bug(
        "MXFP8 of [{}, {}]: expected blocks of 32 along rows of a multiple of 32 numbers and along columns, "
        "with scales that are rounded alike",
        x.size(0), x.size(1));
}

Operands operands_of(FourTensors&& made) {
  auto& [rows, columns, row_scale, column_scale] = made;
  return {{std::move(rows), std::move(row_scale)}, {std::move(columns), std::move(column_scale)}};
}

}  // namespace

// An operator for the reason that cast() is one.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def(
      "mx_cast(Tensor x, bool rows, bool columns, bool rounds_up) -> (Tensor, Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain_cast));
}

Operands cast_blocks(const Tensor& x, const std::optional<Scaling>& rows,
                     const std::optional<Scaling>& columns) {
  check(x, rows, columns);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::mx_cast", "")
                             .typed<FourTensors(const Tensor&, bool, bool, bool)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  return operands_of(op.call(x.detach().contiguous(), rows.has_value(), columns.has_value(),
                             (rows ? rows : columns)->rounds_up));
}

Operands plain::cast_blocks(const Tensor& x, const std::optional<Scaling>& rows,
                            const std::optional<Scaling>& columns) {
  check(x, rows, columns);
  return operands_of(
      plain_cast(x.detach(), rows.has_value(), columns.has_value(), (rows ? rows : columns)->rounds_up));
}

Tensor dequantize_blocks(const Quantized& x, at::ScalarType dtype) {
  if (!x.values.is_contiguous()) return dequantize_blocks({x.values.t(), x.scale.t()}, dtype).t();
  // The powers are put together of bits: libtorch's exp2 on a GPU would compile a kernel while training runs.
  const Tensor bits = x.scale.contiguous().view(at::kByte).to(at::kInt);
  const Tensor powers = at::where(bits.eq(0), 1 << (kMantissaBits - 1), bits.mul(1 << kMantissaBits));
  const Tensor scale =
      at::where(bits.eq(kNan), std::numeric_limits<float>::quiet_NaN(), powers.view(at::kFloat)).to(dtype);
  return x.values.to(dtype)
      .view({x.values.size(0), x.values.size(1) / kBlock, kBlock})
      .mul(scale.unsqueeze(-1))
      .view(x.values.sizes());
}

Tensor scales_for_cublas(const Tensor& scale) {
  constexpr int64_t kRows = 128, kColumns = 4, kGroups = 4;
  const int64_t missing_rows = (kRows - scale.size(0) % kRows) % kRows,
                missing_columns = (kColumns - scale.size(1) % kColumns) % kColumns;
  Tensor bytes = scale.view(at::kByte);
  if (missing_rows + missing_columns > 0)
    bytes = at::constant_pad_nd(bytes, {0, missing_columns, 0, missing_rows});
  return bytes.reshape({-1, kGroups, kRows / kGroups, bytes.size(1) / kColumns, kColumns})
      .permute({0, 3, 2, 1, 4})
      .flatten()
      .view(kE8m0);
}

}  // namespace hyperion::float8
