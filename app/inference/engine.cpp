#include "app/inference/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/progress.h"

namespace hyperion::inference {

InferenceEngine::InferenceEngine(const models::ModelArgs& args, at::Device device, at::ScalarType dtype,
                                 const LoadWeights& load)
    : model_(args), device_(device) {
  for (const models::ExpertBalancePtr& balance : model_.balances()) {
    load(*balance->bias, balance->bias->weight);
    balance->bias->weight = balance->bias->weight.to(device);
  }
  uint64_t total = 0, done = 0;
  for (const ParameterPtr& parameter : model_.parameters())
    total += static_cast<uint64_t>(c10::multiply_integers(parameter->shape));
  Progress progress("loading weights", total, "numbers");
  for (const ParameterPtr& parameter : model_.parameters()) {
    const at::Tensor weight = at::empty(parameter->shape, at::TensorOptions(at::kFloat));
    load(*parameter, weight);
    parameter->weight = weight.to(device, dtype);
    progress.update(done += static_cast<uint64_t>(weight.numel()));
  }
}

at::Tensor InferenceEngine::hidden(const at::Tensor& tokens, const models::SequenceContext& context) const {
  at::Tensor x = model_.embedding().forward(tokens);
  for (const models::TransformerBlock& block : model_.blocks()) x = block.forward(x, context);
  return x;
}

at::Tensor InferenceEngine::next_logits(std::span<const int64_t> tokens) const {
  at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(tokens.size());
  const at::Tensor row =
      at::from_blob(const_cast<int64_t*>(tokens.data()), {1, length}, at::TensorOptions(at::kLong));
  const at::Tensor x = hidden(row.to(device_), model_.context(length, device_));
  return model_.head().logits(x.narrow(1, length - 1, 1)).view(-1).to(at::kCPU, at::kFloat);
}

double InferenceEngine::loss_sum(const data::Batch& batch) {
  at::NoGradGuard no_grad;
  const models::Microbatch moved = mover_.move(batch, 0, batch.rows);
  return model_.head().loss_sum(hidden(moved.tokens, moved.context), moved.labels).item<double>();
}

}  // namespace hyperion::inference
