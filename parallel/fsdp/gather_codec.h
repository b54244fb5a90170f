// How chosen parameters are all-gathered in a smaller form than their compute dtype. parallel/ exchanges what
// the ranks must know of each other's shards, encodes and sends; the encoding itself is defined by the
// functions below, which the trainer takes from the FP8 linears (models/float8/quantize.h and cast.h).
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"

namespace hyperion::parallel {

struct GatherCodec {
  at::ScalarType dtype = at::kByte;  // of an encoded element
  std::function<bool(const Parameter&)> applies{};

  // Of master rows on each rank: fp32 [n] on `device`. Their maximum over all ranks with a part of the
  // parameter is what scales() takes: fp32 [n] of factors, and of their inverses.
  std::function<at::Tensor(const std::vector<at::Tensor>& masters, at::Device device)> statistics{};
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& maxima)> scales{};
  // Master rows to `out`, of the same shape in `dtype`. scale: 0-dim, on the master's device.
  std::function<void(const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out)> encode{};

  // All scales in one reduction when the weights have changed; otherwise a unit's when it is gathered for the
  // first time after that. The numbers are the same.
  bool eager = true;
};

}  // namespace hyperion::parallel
