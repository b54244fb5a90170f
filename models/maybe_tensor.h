// A tensor that may be undefined, as operators and nodes of libtorch take it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace hyperion {

using MaybeTensor = std::optional<at::Tensor>;

inline MaybeTensor if_defined(const at::Tensor& x) {
  return x.defined() ? MaybeTensor(x) : std::nullopt;
}

}  // namespace hyperion
