// A GatherCodec encodes chosen parameters for an all-gather in a smaller dtype than their compute dtype.
// parallel/ reduces the statistics over the ranks, encodes and sends. The trainer takes the functions below
// from the FP8 linears (models/float8/quantize.h and cast.h).
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"

namespace hyperion::parallel {

struct GatherCodec {
  at::ScalarType dtype = at::kByte;  // the dtype of an encoded element
  std::function<bool(const Parameter&)> applies{};

  // statistics() returns one number for each of a rank's n masters, fp32 [n] on `device`. scales() takes
  // their maxima over all ranks that hold a part of the parameter, and returns factors and their inverses,
  // each fp32 [n].
  std::function<at::Tensor(const std::vector<at::Tensor>& masters, at::Device device)> statistics{};
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& maxima)> scales{};
  // encode() writes the master to `out`, which has the same shape in `dtype`. `scale` is 0-dim on the
  // master's device.
  std::function<void(const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out)> encode{};

  // If true, one reduction computes all scales when the weights have changed. If false, each unit computes
  // its scales in its first all-gather after that. The numbers are the same.
  bool eager = true;
};

}  // namespace hyperion::parallel
