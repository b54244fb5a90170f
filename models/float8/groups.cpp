#include "models/float8/groups.h"

#include <functional>
#include <tuple>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "models/float8/blocks.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

constexpr int64_t kTileRows = 128, kTileColumns = 4;

int64_t round_up(int64_t number, int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

// The group of each of `count` positions, of which groups end at `ends`: int64; groups behind the last.
Tensor group_of_each(const Tensor& ends, int64_t count) {
  return at::bucketize(at::arange(count, ends.options()), ends, /*out_int32=*/false, /*right=*/true);
}

Tensor starts_of(const Tensor& ends) {
  return at::constant_pad_nd(ends.narrow(0, 0, ends.size(0) - 1), {1, 0});
}

// Calls with the number of each group and its rows; on a GPU the host waits for the ends.
void for_each_group(const Tensor& ends,
                    const std::function<void(int64_t group, int64_t first, int64_t count)>& run) {
  const Tensor on_host = ends.cpu();
  const int32_t* end = on_host.const_data_ptr<int32_t>();
  int64_t first = 0;
  for (int64_t group = 0; group < on_host.size(0); ++group) {
    run(group, first, end[group] - first);
    first = end[group];
  }
}

// Returns x [lines, numbers] times the transpose of y, both with a scale for each line or for its blocks.
Tensor emulated(const Quantized& x, const Quantized& y, at::ScalarType out) {
  return scaled_matmul(x, {y.values.t(), y.scale.t()}, out, /*fast_accumulate=*/true, Gemm::kEmulated);
}

// Numbers first to first + count of each line, which have `scale`.
Quantized part_of_lines(const Quantized& x, const Tensor& scale, int64_t first, int64_t count) {
  return {x.values.narrow(1, first, count).contiguous(), scale};
}

// libtorch's product leaves bf16.
Tensor native(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
              const Tensor& ends, at::ScalarType out) {
  return at::_scaled_grouped_mm(a, b, scale_a, scale_b, ends, /*bias=*/std::nullopt,
                                /*scale_result=*/std::nullopt, at::kBFloat16, /*use_fast_accum=*/true)
      .to(out);
}

bool has_blocks(const Quantized& x) {
  return x.scale.scalar_type() == kE8m0;
}

// x [rows, n] in e4m3, each row by the scales of its group, [groups, n], as [n, rows].
Tensor plain_cast_groups(const Tensor& x, const Tensor& scale, const Tensor& group) {
  return saturating_cast(x, scale.index_select(0, group), kE4m3).t().contiguous();
}

using StackCasts = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // rows, columns, scale and inverse of rows

StackCasts plain_cast_stack(const Tensor& stack, const Tensor& row_amax, const Tensor& column_scale,
                            bool power_of_two) {
  auto [scale, inverse] = scales_of(row_amax, kE4m3, power_of_two);
  const Tensor by_rows = scale.view({stack.size(0), stack.size(1), 1}),
               by_columns = column_scale.unsqueeze(1);
  return {saturating_cast(stack, by_rows, kE4m3).contiguous(),
          saturating_cast(stack, by_columns, kE4m3).transpose(1, 2).contiguous(), scale, inverse};
}

}  // namespace

Tensor plain::amax_of_groups(const Tensor& x, const Tensor& ends) {
  const Tensor lengths = (ends - starts_of(ends)).to(at::kLong);
  return at::segment_reduce(x.abs(), "max", lengths, /*indices=*/std::nullopt, /*offsets=*/std::nullopt,
                            /*axis=*/0, /*unsafe=*/true, /*initial=*/0)
      .to(at::kFloat);
}

// Operators for the reason that cast() is one. On a GPU the rows that float8_cast_groups casts are a multiple
// of 16.
TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def("float8_amax_groups(Tensor x, Tensor ends) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain::amax_of_groups));
  library.def("float8_cast_groups(Tensor x, Tensor scale, Tensor group) -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain_cast_groups));
  library.def(
      "float8_cast_stack(Tensor x, Tensor row_amax, Tensor column_scale, bool power_of_two) -> (Tensor, "
      "Tensor, Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, plain_cast_stack));
}

Tensor amax_of_groups(const Tensor& x, const Tensor& ends) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_amax_groups", "")
                             .typed<Tensor(const Tensor&, const Tensor&)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  return op.call(x.detach(), ends);
}

Quantized cast_columns_of_groups(const Tensor& x, const Tensor& ends, const Scaling& scaling) {
  if (scaling.granularity == Granularity::kColumnBlock) {  // which lie within groups
    const Quantized columns = cast_blocks(x, std::nullopt, scaling).columns;
    return {columns.values.t(), columns.scale.t()};
  }
  const auto [scale, inverse] = scales_of(amax_of_groups(x, ends), scaling.dtype, scaling.power_of_two);
  const Tensor group = group_of_each(ends, x.size(0)).clamp_max_(ends.size(0) - 1);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_cast_groups", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  return {op.call(x.detach(), scale, group), scale, inverse};
}

Operands cast_stack(const Tensor& stack, const PartOf& part) {
  const Tensor x = stack.detach();
  const int64_t matrices = x.size(0), n = x.size(1), k = x.size(2);
  const Tensor lines = x.reshape({matrices * n, k});
  Exchange* const of_rows = part.dim == 2 ? part.group : nullptr;
  const Tensor row_amax = amax(lines, Granularity::kRow, {of_rows, 1});
  const Tensor ends = at::arange(n, matrices * n + 1, n, x.options().dtype(at::kInt));
  const Tensor column_amax = amax_of_groups(lines, ends);
  if (part.dim == 1 && part.group != nullptr) part.group->start_all_reduce_max(column_amax).wait();
  auto [column_scale, column_inverse] = scales_of(column_amax, kE4m3, /*power_of_two=*/true);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("hyperion::float8_cast_stack", "")
                             .typed<StackCasts(const Tensor&, const Tensor&, const Tensor&, bool)>();
  const at::AutoDispatchBelowAutograd no_gradients;
  const auto [rows, columns, scale, inverse] = op.call(x, row_amax, column_scale, /*power_of_two=*/true);
  return {{rows, scale.view({matrices, n}), inverse.view({matrices, n})},
          {columns, column_scale, column_inverse}};
}

Tensor scaled_grouped_matmul(const Quantized& a, const Quantized& stack, const Tensor& ends,
                             at::ScalarType out, Gemm gemm) {
  if (gemm == Gemm::kNative) {
    const Tensor matrices = stack.values.transpose(1, 2);
    if (has_blocks(a))
      return native(a.values, matrices, scales_of_row_groups(a.scale, ends), scales_of_stack(stack.scale),
                    ends, out);
    return native(a.values, matrices, a.inverse.flatten(), stack.inverse, ends, out);
  }
  const Tensor product = at::empty({a.values.size(0), stack.values.size(1)}, a.values.options().dtype(out));
  for_each_group(ends, [&](int64_t group, int64_t first, int64_t count) {
    const Tensor scale = stack.scale.select(0, group);
    product.narrow(0, first, count)
        .copy_(emulated({a.values.narrow(0, first, count), a.scale.narrow(0, first, count)},
                        {stack.values.select(0, group), has_blocks(stack) ? scale : scale.unsqueeze(1)},
                        out));
  });
  return product;
}

Tensor scaled_grouped_outer_matmul(const Quantized& a, const Quantized& b, const Tensor& ends,
                                   at::ScalarType out, Gemm gemm) {
  const bool blocks = has_blocks(a);
  if (gemm == Gemm::kNative)
    return blocks ? native(a.values, b.values.t(), scales_of_block_groups(a.scale, ends),
                           scales_of_block_groups(b.scale, ends), ends, out)
                  : native(a.values, b.values.t(), a.inverse.flatten(), b.inverse.flatten(), ends, out);
  const Tensor product =
      at::empty({ends.size(0), a.values.size(0), b.values.size(0)}, a.values.options().dtype(out));
  for_each_group(ends, [&](int64_t group, int64_t first, int64_t count) {
    const auto of_group = [&](const Quantized& x) {
      return part_of_lines(x,
                           blocks ? x.scale.narrow(1, first / kBlock, count / kBlock).contiguous()
                                  : x.scale.select(0, group).unsqueeze(1),
                           first, count);
    };
    product.select(0, group).copy_(emulated(of_group(a), of_group(b), out));
  });
  return product;
}

const char* why_not_grouped(bool blocks, int compute_capability) {
  const int generation = compute_capability / 10;
  if (blocks)
    return generation == 10 ? nullptr
                            : "libtorch's grouped product of MXFP8 is one of GPUs of compute capability 10.0";
  return generation == 9 || generation == 10
             ? nullptr
             : "libtorch's grouped product of FP8 is one of GPUs of compute capability 9.0 and 10.0";
}

Tensor scales_of_row_groups(const Tensor& scale, const Tensor& ends) {
  const int64_t rows = scale.size(0), groups = ends.size(0),
                padded_rows = round_up(rows + groups * kTileRows, kTileRows),
                columns = round_up(scale.size(1), kTileColumns);
  // The number of rows by which each group moves, and the rows behind the last group.
  const Tensor lengths = ends - starts_of(ends);
  const Tensor added =
      lengths.add(kTileRows - 1).floor_divide_(kTileRows).mul_(kTileRows).sub_(lengths).cumsum(0);
  const Tensor moved = at::constant_pad_nd(added, {1, 0}).index_select(0, group_of_each(ends, rows));
  const Tensor to = at::arange(rows, moved.options()).add_(moved);
  const Tensor bytes = at::zeros({padded_rows, columns}, scale.options().dtype(at::kByte));
  bytes.narrow(1, 0, scale.size(1)).index_copy_(0, to, scale.view(at::kByte));
  return scales_for_cublas(bytes.view(kE8m0)).view({padded_rows, columns});
}

Tensor scales_of_block_groups(const Tensor& scale, const Tensor& row_ends) {
  const int64_t blocks = scale.size(1), groups = row_ends.size(0), rows = round_up(scale.size(0), kTileRows),
                padded_blocks = round_up(blocks + groups * kTileColumns, kTileColumns);
  const Tensor ends = row_ends.floor_divide(kBlock), lengths = ends - starts_of(ends);
  const Tensor tiles = lengths.add(kTileColumns - 1).floor_divide_(kTileColumns);  // of each group
  const Tensor tile_ends = tiles.cumsum(0).to(at::kInt);
  const Tensor added = tiles.mul(kTileColumns).sub_(lengths).cumsum(0);
  const Tensor moved = at::constant_pad_nd(added, {1, 0}).index_select(0, group_of_each(ends, blocks));
  const Tensor to = at::arange(blocks, moved.options()).add_(moved);
  const Tensor bytes = at::zeros({scale.size(0), padded_blocks}, scale.options().dtype(at::kByte));
  bytes.index_copy_(1, to, scale.contiguous().view(at::kByte));
  // The tiles are [of rows, of blocks]; those of a group go behind those of the groups before it.
  const int64_t of_rows = rows / kTileRows, of_blocks = padded_blocks / kTileColumns;
  const Tensor cut = scales_for_cublas(bytes.view(kE8m0)).view(at::kByte).view({of_rows * of_blocks, -1});
  const Tensor group = group_of_each(tile_ends, of_blocks);
  const auto of_group = [&](const Tensor& numbers) {  // what lies behind the last: a group of all the rest
    return numbers.to(at::kLong).index_select(0, group).unsqueeze(0);
  };
  const Tensor first = of_group(at::constant_pad_nd(tile_ends, {1, 0}));
  const Tensor widths = of_group(at::constant_pad_nd(tiles, {0, 1}));
  const Tensor r = at::arange(of_rows, first.options()).unsqueeze(1),
               c = at::arange(of_blocks, first.options());
  const Tensor rest = group.eq(groups).unsqueeze(0);
  const Tensor width = widths + rest * (of_blocks - first);
  const Tensor place = (first * of_rows + r * width + (c - first)).flatten();
  return at::empty_like(cut).index_copy_(0, place, cut).view(kE8m0).view({rows, padded_blocks});
}

Tensor scales_of_stack(const Tensor& scale) {
  const int64_t groups = scale.size(0), n = round_up(scale.size(1), kTileRows),
                blocks = round_up(scale.size(2), kTileColumns);
  const Tensor bytes =
      at::constant_pad_nd(scale.view(at::kByte), {0, blocks - scale.size(2), 0, n - scale.size(1)});
  // Rows of all matrices fill tiles of their own now.
  return scales_for_cublas(bytes.view({groups * n, blocks}).view(kE8m0)).view({groups, n * blocks});
}

}  // namespace hyperion::float8
