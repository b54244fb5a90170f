// Rotation of query and key heads by their position (RoFormer, arXiv 2104.09864), fp32 inside, one rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/flavors/model_args.h"

namespace hyperion::kernels {

// x [batch, seq, heads, head_dim]; cos, sin fp32 [seq, head_dim/2] or [batch, seq, head_dim/2]. `inverse`
// turns back, which is also the gradient.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse);

namespace plain {
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse);
}

}  // namespace hyperion::kernels
