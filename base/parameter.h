// A parameter is data: its name, global shape, initial distribution, and the tensor that layers currently
// read. Models declare parameters, parallel/ shards and binds them, the optimizer and the checkpoint
// describe state by them; there is no second source of names or shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion {

// How a parameter's elements are drawn (models/init.h draws them).
struct Init {
  enum class Kind { kOnes, kNormal, kTruncatedNormal };
  Kind kind = Kind::kOnes;
  double std = 1.0;
  double low = 0.0, high = 0.0;  // absolute bounds of a truncated normal

  static Init ones() { return {}; }
  static Init normal(double std) { return {Kind::kNormal, std, 0.0, 0.0}; }
  static Init truncated_normal(double std, double low, double high) {
    return {Kind::kTruncatedNormal, std, low, high};
  }
};

// What a layer derives from a weight's current value, such as its FP8 copies.
struct DerivedWeight {
  virtual ~DerivedWeight() = default;
};

struct Parameter {
  std::string fqn;             // the name in checkpoints; no wrapper, recipe or mesh ever changes it
  std::vector<int64_t> shape;  // global (unsharded) shape
  Init init;
  std::vector<std::string> aliases{};  // further names it is saved under (a tied head)

  // What layers read: an autograd leaf of `shape` in the compute dtype. Its owner (parallel/) creates it once
  // and fills and empties its storage; its .grad() collects this rank's gradient until the owner reduces it.
  at::Tensor weight{};

  // Set where the owner gathers the contents in an encoded form instead: `encoded` of `shape`, in units of
  // 1 / encoded_scale (0-dim fp32). `weight` then never has bytes and only collects the gradient.
  at::Tensor encoded{}, encoded_scale{};

  // A layer may cache here what it derived from the value; the owner drops it when the value changes or is
  // freed.
  mutable std::shared_ptr<DerivedWeight> derived{};

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
  int64_t rows() const { return shape.at(0); }
  int64_t row_numel() const { return rows() == 0 ? 0 : numel() / rows(); }
};

using ParameterPtr = std::shared_ptr<Parameter>;

inline ParameterPtr make_parameter(std::string fqn, std::vector<int64_t> shape, Init init) {
  auto parameter = std::make_shared<Parameter>();
  parameter->fqn = std::move(fqn);
  parameter->shape = std::move(shape);
  parameter->init = init;
  return parameter;
}

}  // namespace hyperion
