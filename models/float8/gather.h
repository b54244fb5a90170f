// Weights that travel in FP8: what parallel/ needs to gather e4m3 bytes instead of bf16, with one scale a
// weight over all of its shards. (torchao's enable_fsdp_float8_all_gather.)
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace hyperion::float8 {

// fp32 [n] on `device`: the largest magnitude of each part of a weight. Their maximum over the ranks goes to
// gather_scales.
at::Tensor gather_statistics(const std::vector<at::Tensor>& masters, at::Device device);
// fp32 [n] both: each weight's scale, and 1 / it.
std::pair<at::Tensor, at::Tensor> gather_scales(const at::Tensor& statistics);
// Master rows [rows, in] (fp32) to e4m3 `out` of the same shape.
void gather_encode(const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out);

}  // namespace hyperion::float8
