// This part of benchmark_gpu times the experts of three models: the grouped products of a rank with an eighth
// (30B-A3B, 16B) or a 64th (671B) of the experts, in bf16 and in FP8, with equal and with skewed groups of
// rows. It also times the cast by columns of groups, the order of rows, and the copy of the counts to the
// host.
#include <algorithm>
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include "benchmarks/gpu.h"
#include "models/float8/groups.h"
#include "models/kernels/kernels.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion {
namespace {

using at::Tensor;
using kernels::RowGroups;

// FP8 rounds each factor to 2^-4 of it.
constexpr double kFloat8Error = 0.1;

struct ExpertShape {
  const char* model;
  int64_t rows, dim, hidden, groups;
  int64_t layer_experts, top_k;  // of the whole layer, which a token chooses from
};

std::vector<ExpertShape> expert_shapes() {
  if (small) return {{"small", 512, 64, 32, 4, 8, 2}};
  return {{"30B-A3B", 65'536, 2'048, 768, 16, 128, 8},
          {"16B", 98'304, 2'048, 1'408, 8, 64, 6},
          {"671B", 32'768, 7'168, 2'048, 4, 256, 8}};
}

// Group g of `groups` gets 1 / (g + 1) of what the first one gets, or all get the same.
std::vector<int64_t> rows_of_groups(const ExpertShape& shape, bool skewed) {
  std::vector<int64_t> counts(static_cast<size_t>(shape.groups), shape.rows / shape.groups);
  if (!skewed) return counts;
  double parts = 0;
  for (int64_t g = 0; g < shape.groups; ++g) parts += 1.0 / static_cast<double>(g + 1);
  for (int64_t g = 0; g < shape.groups; ++g)
    counts[static_cast<size_t>(g)] =
        static_cast<int64_t>(static_cast<double>(shape.rows) / parts / static_cast<double>(g + 1));
  counts[0] += shape.rows - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return counts;
}

struct ExpertOperands {
  Tensor x, grad, stack, ends;  // [rows, dim], [rows, hidden], [groups, hidden, dim], int32 [groups]
  int64_t first_end;            // the end of the first group
};

// The three products: output, dgrad, wgrad.
using ThreeProducts = std::vector<std::function<Tensor()>>;

ThreeProducts bf16_products(const ExpertOperands& of) {
  const auto groups = [ends = of.ends] { return RowGroups{.ends = ends}; };
  return {[=] { return kernels::grouped_matmul(of.x, of.stack.transpose(1, 2), groups()); },
          [=] { return kernels::grouped_matmul(of.grad, of.stack, groups()); },
          [=] { return kernels::grouped_outer_matmul(of.grad, of.x, groups()); }};
}

// A stack [groups, n, k] with a scale for each of its rows.
float8::Quantized cast_of_stack(const Tensor& stack, const float8::Scaling& scaling) {
  const Tensor dense = stack.contiguous();
  float8::Quantized flat = float8::quantize(dense.view({-1, dense.size(2)}), scaling);
  const auto scales = [&](const Tensor& of_rows) {
    return of_rows.defined() ? of_rows.view({dense.size(0), dense.size(1)}) : of_rows;
  };
  return {flat.values.view(dense.sizes()), scales(flat.scale), scales(flat.inverse)};
}

// The casts are made before: what is timed is the products.
ThreeProducts float8_products(const ExpertOperands& of, const float8::Scaling& by_row,
                              const float8::Scaling& by_column) {
  using float8::Gemm;
  const float8::Quantized x = float8::quantize(of.x, by_row), grad = float8::quantize(of.grad, by_row),
                          stack = cast_of_stack(of.stack, by_row),
                          turned = cast_of_stack(of.stack.transpose(1, 2), by_row),
                          x_columns = float8::cast_columns_of_groups(of.x, of.ends, by_column),
                          grad_columns = float8::cast_columns_of_groups(of.grad, of.ends, by_column);
  const Tensor& ends = of.ends;
  return {[=] { return float8::scaled_grouped_matmul(x, stack, ends, at::kBFloat16, Gemm::kNative); },
          [=] { return float8::scaled_grouped_matmul(grad, turned, ends, at::kBFloat16, Gemm::kNative); },
          [=] {
            return float8::scaled_grouped_outer_matmul(grad_columns, x_columns, ends, at::kBFloat16,
                                                       Gemm::kNative);
          }};
}

// Returns the three products of the first group in fp32.
std::vector<Tensor> first_group_of(const ExpertOperands& of) {
  const auto rows = [&](const Tensor& all) { return all.narrow(0, 0, of.first_end).to(at::kFloat); };
  const Tensor x = rows(of.x), grad = rows(of.grad), matrix = of.stack[0].to(at::kFloat);
  return {x.mm(matrix.t()), grad.mm(matrix), grad.t().mm(x)};
}

void print_products(const std::string& name, const ExpertShape& shape, const ThreeProducts& products,
                    const std::vector<Tensor>& wanted, double limit) {
  const double operations = 2.0 * static_cast<double>(shape.rows * shape.dim * shape.hidden);
  Works works;
  for (const auto& product : products) works.emplace_back([&product] { product(); });
  const std::vector<double> seconds = medians(works, 5);
  const char* const directions[] = {"forward", "dgrad", "wgrad"};
  for (size_t i = 0; i < products.size(); ++i) {
    const Tensor made = products[i](), first = i == 2 ? made[0] : made.narrow(0, 0, wanted[i].size(0));
    const double error = relative_error(first, wanted[i]);
    print_row(fmt::format("{} {}", name, directions[i]),
              fmt::format(", \"us\": {:.1f}, \"tflops\": {:.1f}, \"error\": {:.3g}", 1e6 * seconds[i],
                          operations / seconds[i] / 1e12, error),
              error_over(error, limit));
  }
}

void time_products(const BenchmarkDevice& place, const ExpertShape& shape, bool skewed) {
  const std::string name = fmt::format("experts of {}, {} rows, ", shape.model, skewed ? "skewed" : "even");
  const bool float8 = float8::why_not_grouped(/*blocks=*/false, place.compute_capability) == nullptr;
  const std::vector<int64_t> counts = rows_of_groups(shape, skewed);
  const kernels::PaddedGroups padded =
      kernels::pad_groups(at::tensor(counts).to(at::kCUDA), shape.rows, float8::kRowMultiple);
  ExpertOperands of{random({padded.rows, shape.dim}), random({padded.rows, shape.hidden}),
                    random({shape.groups, shape.hidden, shape.dim}), padded.ends, 0};
  for (const Tensor& rows : {of.x, of.grad}) rows.index_fill_(0, padded.padding, 0);
  of.first_end = padded.ends[0].item<int64_t>();
  const std::vector<Tensor> wanted = first_group_of(of);
  print_products(name + "bf16", shape, bf16_products(of), wanted, kBf16Error);
  if (!float8) return;
  const float8::Scaling by_row = {.granularity = float8::Granularity::kRow, .power_of_two = true},
                        by_column = {.granularity = float8::Granularity::kColumn, .power_of_two = true};
  print_products(name + "FP8", shape, float8_products(of, by_row, by_column), wanted, kFloat8Error);
  const double seconds = seconds_of([&] { float8::cast_columns_of_groups(of.x, of.ends, by_column); });
  const double bytes = (2.0 + 2.0 + 1.0) * static_cast<double>(of.x.numel());  // read twice, written once
  print_row(name + "cast by columns",
            fmt::format(", \"us\": {:.1f}, \"gb_per_s\": {:.1f}", 1e6 * seconds, bytes / seconds / 1e9));
}

// Times the order of rows. Each token chooses top_k experts, so there are rows / top_k tokens.
void time_order(const ExpertShape& shape) {
  const int64_t tokens = shape.rows / shape.top_k;
  const Tensor choices =
      std::get<1>(at::rand({tokens, shape.layer_experts}, at::TensorOptions(at::kCUDA)).topk(shape.top_k))
          .to(at::kInt);
  const auto order = [&] {
    return kernels::table().order_rows(choices, shape.layer_experts, kernels::kGroupUnit);
  };
  const kernels::RowOrder found = order(), wanted = kernels::plain::order_rows(choices, shape.layer_experts,
                                                                               kernels::kGroupUnit);
  const bool equal = found.rows.equal(wanted.rows) && found.expert_rows.equal(wanted.expert_rows);
  const double seconds = seconds_of([&] { order(); });
  print_row(fmt::format("experts of {}, order of rows", shape.model),
            fmt::format(", \"us\": {:.1f}", 1e6 * seconds), equal ? "" : "not the plain form's order");
  const double copied = seconds_of([&] { found.expert_rows.cpu(); }, 1);
  print_row(fmt::format("experts of {}, counts to the host", shape.model),
            fmt::format(", \"us\": {:.1f}", 1e6 * copied));
}

}  // namespace

void experts(const BenchmarkDevice& place) {
  for (const ExpertShape& shape : expert_shapes()) {
    for (const bool skewed : {false, true}) time_products(place, shape, skewed);
    time_order(shape);
  }
}

}  // namespace hyperion
