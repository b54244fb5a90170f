// The state of a small Llama with its Adam optimizer, as a benchmark of checkpoints needs it: real names,
// shapes and placements, arbitrary numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/state.h"

namespace hyperion::checkpoint {

// A parameter of the model; checkpoint_peer.py has the same list.
using NamedShape = std::pair<std::string, Dims>;

// A vocabulary of 31,168 and 4 layers make 512 MiB of parameters and moments, in 39 parameters.
inline std::vector<NamedShape> llama_shapes(int64_t vocab, int64_t layers) {
  constexpr int64_t kDim = 512, kHidden = 1408;
  std::vector<NamedShape> shapes{{"tok_embeddings.weight", {vocab, kDim}}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto add = [&](const char* name, Dims shape) {
      shapes.emplace_back(fmt::format("layers.{}.{}.weight", layer, name), std::move(shape));
    };
    for (const char* name : {"attention.wq", "attention.wk", "attention.wv", "attention.wo"})
      add(name, {kDim, kDim});
    add("feed_forward.w1", {kHidden, kDim});
    add("feed_forward.w2", {kDim, kHidden});
    add("feed_forward.w3", {kHidden, kDim});
    add("attention_norm", {kDim});
    add("ffn_norm", {kDim});
  }
  shapes.emplace_back("norm.weight", Dims{kDim});
  shapes.emplace_back("output.weight", Dims{vocab, kDim});
  return shapes;
}

// One component that holds it all. Each tensor has memory of its own, as in a training job.
class LlamaState : public StateComponent {
 public:
  // `ema`: with an average of every parameter.
  LlamaState(const std::vector<NamedShape>& shapes, const Placement& sharded, const Placement& whole,
             bool ema = false)
      : shapes_(shapes) {
    for (const auto& [name, shape] : shapes) {
      const std::string state = "state." + name;
      add(name, {name}, shape, sharded);
      add("optimizer." + state + ".exp_avg", {"optimizer", state + ".exp_avg"}, shape, sharded);
      add("optimizer." + state + ".exp_avg_sq", {"optimizer", state + ".exp_avg_sq"}, shape, sharded);
      add("optimizer." + state + ".step", {"optimizer", state + ".step"}, {}, whole);
      if (ema) add("ema." + name, {"ema", name}, shape, sharded);
    }
  }

  std::string name() const override { return "model"; }
  std::vector<TensorState> tensors() override { return tensors_; }

  // The options of each parameter, as PyTorch's flattened optimizer state has them.
  std::vector<ObjectState> objects() override {
    static const std::vector<std::pair<const char*, Object>> kOptions = {
        {"lr", 3e-4},         {"betas", Object::tuple({0.9, 0.95})},
        {"eps", 1e-8},        {"weight_decay", 0.1},
        {"amsgrad", false},   {"foreach", Object()},
        {"maximize", false},  {"capturable", false},
        {"fused", true},      {"differentiable", false},
        {"initial_lr", 3e-4}, {"decoupled", true},
    };
    std::vector<ObjectState> objects{{"train_state.step", {"train_state", "step"}, 1, false}};
    for (const auto& [name, shape] : shapes_) {
      for (const auto& [option, value] : kOptions) {
        const std::string part = fmt::format("param_groups.{}.{}", name, option);
        objects.push_back({"optimizer." + part, {"optimizer", part}, value, false});
      }
    }
    return objects;
  }

  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const TensorState& tensor : tensors_) bytes += tensor.local_bytes();
    return bytes;
  }

 private:
  void add(const std::string& key, KeyPath path, const Dims& shape, const Placement& placement) {
    TensorState tensor;
    tensor.key = key;
    tensor.path = std::move(path);
    tensor.shape = shape;
    tensor.placement = placement;
    const uint64_t bytes = tensor.local_bytes();
    memory_.push_back(std::make_unique<float[]>(bytes / sizeof(float)));
    for (uint64_t i = 0; i < bytes / sizeof(float); ++i)  // no page of zeros
      memory_.back()[i] = static_cast<float>((i + tensors_.size()) * 2654435761U % 1000003U);
    tensor.data = memory_.back().get();
    tensors_.push_back(std::move(tensor));
  }

  std::vector<NamedShape> shapes_;
  std::vector<TensorState> tensors_;
  std::vector<std::unique_ptr<float[]>> memory_;
};

}  // namespace hyperion::checkpoint
