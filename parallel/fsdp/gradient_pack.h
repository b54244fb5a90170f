// GradientPack lays a unit's gradients side by side in one tensor, of which each rank gets a row.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::parallel {

// Writes the rows of a gradient into `rows`, [world, padded numel], or adds them to it: row r is what rank r
// holds of it, in torch.chunk's layout. Some ranks hold full rows, then one may hold fewer, and the rest
// none: the number of copies does not depend on the number of ranks.
void write_rows(const at::Tensor& grad, const at::Tensor& rows, bool add);

// Returns whether libtorch's kernel for it takes these: one launch for all.
bool chunk_cat_takes(const std::vector<at::Tensor>& grads, const at::Tensor& packed);

// Returns whether gradients are added to a sum by a kernel for each of them, 10 bytes an element of bf16. Two
// kernels for all of them make another pack and add it: 18 bytes, which small gradients take for fewer
// launches.
bool adds_in_place(const std::vector<at::Tensor>& grads);

}  // namespace hyperion::parallel
