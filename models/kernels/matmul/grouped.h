// Matrix products of several pairs at once, as those of experts: the rows of one operand are divided among
// the matrices of a stack, in order, counts[e] rows to matrix e. Zero rows are allowed.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// For each e: its rows of a [rows, k] times b[e], b [n, k, j] with any strides -> [rows, j].
at::Tensor grouped_matmul(const at::Tensor& a, const at::Tensor& b, std::span<const int64_t> counts);

// For each e: its rows of a [rows, m], transposed, times its rows of b [rows, k] -> [n, m, k]; zeros without
// rows.
at::Tensor grouped_outer_matmul(const at::Tensor& a, const at::Tensor& b, std::span<const int64_t> counts);

}  // namespace hyperion::kernels
