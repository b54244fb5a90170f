#include "trainer/optim/grad_clip.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"
#include "parallel/comm/trace_range.h"

namespace hyperion::optim {

namespace {

at::Tensor squares_of(const std::vector<at::Tensor>& grads, at::Device device) {
  if (device.is_cuda()) {  // one launch for each, and two for all
    const at::Tensor norms =
        at::zeros({static_cast<int64_t>(grads.size())}, at::TensorOptions(at::kFloat).device(device));
    for (size_t i = 0; i < grads.size(); ++i) {
      at::Tensor norm = norms.select(0, static_cast<int64_t>(i));
      if (grads[i].numel() > 0)
        at::linalg_vector_norm_out(norm, grads[i], 2, std::nullopt, /*keepdim=*/false, at::kFloat);
    }
    return norms.square().sum();
  }
  at::Tensor total =
      at::zeros({}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
  for (const at::Tensor& grad : grads)
    if (grad.numel() > 0) total.add_(kernels::table().sum_of_squares(grad));
  return total;
}

}  // namespace

std::vector<GradientClass> gradient_classes(const parallel::LocalGradients& gradients,
                                            parallel::Communicator& shard, parallel::Communicator* tensor,
                                            parallel::Communicator& stages,
                                            const std::vector<parallel::Communicator*>& experts) {
  std::vector<GradientClass> classes;
  if (tensor != nullptr) classes.push_back({gradients.replicated, {&shard, &stages}});
  classes.push_back({gradients.tp_sharded, {&shard, &stages}});
  if (tensor != nullptr) classes.back().groups.push_back(tensor);
  if (!experts.empty()) {
    classes.push_back({gradients.experts, experts});
    classes.back().groups.push_back(&stages);
  }
  return classes;
}

at::Tensor global_grad_norm(const std::vector<GradientClass>& classes, at::Device device) {
  const parallel::TraceRange range("gradient norm");
  std::vector<at::Tensor> squares;
  for (const GradientClass& one : classes) squares.push_back(squares_of(one.gradients, device));
  const at::Tensor sums = squares.size() == 1 ? squares[0].unsqueeze(0) : at::stack(squares);
  const auto sums_over = [](const GradientClass& one, parallel::Communicator* group) {
    return std::ranges::find(one.groups, group) != one.groups.end();
  };
  for (size_t first = 0; first < classes.size(); ++first) {
    for (parallel::Communicator* group : classes[first].groups) {
      if (first > 0 && sums_over(classes[first - 1], group)) continue;  // with that one
      size_t end = first;
      while (end < classes.size() && sums_over(classes[end], group)) ++end;
      group->all_reduce_sum(sums.slice(/*dim=*/0, static_cast<int64_t>(first), static_cast<int64_t>(end)));
    }
  }
  return (squares.size() == 1 ? squares[0] : sums.sum()).sqrt_();
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  return (norm + 1e-6).div_(max_norm).clamp_min_(1.0);
}

void clip_gradients(const parallel::LocalGradients& gradients, const at::Tensor& norm, double max_norm) {
  const parallel::TraceRange range("gradient clipping");
  const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(max_norm).clamp_max_(1.0);
  for (const auto* grads :
       {&gradients.tp_sharded, &gradients.replicated, &gradients.experts, &gradients.copies})
    for (const at::Tensor& grad : *grads) grad.mul_(factor.to(grad.scalar_type()));
}

}  // namespace hyperion::optim
