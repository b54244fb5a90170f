#include "trainer/build/attention_trial.h"

#include <tuple>

#include <fmt/format.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/device/error_text.h"

namespace hyperion::trainer {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext, torch::autograd::Function, torch::autograd::variable_list;

constexpr double kLargestError = 0.05;  // of two bf16 kernels: about 0.005

struct TriedAttention : Function<TriedAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        int64_t mask) {
    const kernels::AttentionResult result =
        kernels::attention_forward(q, k, v, {static_cast<kernels::MaskKind>(mask)});
    variable_list saved = {q, k, v, result.output, result.lse};
    saved.insert(saved.end(), result.extras.begin(), result.extras.end());
    context->save_for_backward(saved);
    context->saved_data["mask"] = mask;
    return result.output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const kernels::AttentionResult result{saved[3], saved[4], {saved.begin() + 5, saved.end()}};
    const auto mask = static_cast<kernels::MaskKind>(context->saved_data["mask"].toInt());
    const auto [q, k, v] =
        kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], {mask}, result);
    return {q, k, v, Tensor()};
  }
};

// [batch, heads, length, width] in the layout that the model's blocks have. The heads differ, sequences do
// not. Random numbers of the device are left alone: they are part of a job's state.
Tensor make_input(const AttentionTrial& trial, int64_t heads, int64_t length, int64_t width, uint64_t seed,
                  at::Device device) {
  const auto options = at::TensorOptions(at::kFloat);
  const Tensor values = at::randn({length, 1, width}, at::detail::createCPUGenerator(seed), options);
  const Tensor of_heads = at::linspace(0.5, 1.5, heads, options).view({heads, 1});
  return (values.to(device) * of_heads.to(device))
      .to(trial.call.dtype)
      .repeat({trial.batch, 1, 1, 1})
      .transpose(1, 2);
}

struct Results {
  Tensor output, grad_q, grad_k, grad_v;
};

// By autograd, as in a step: its thread runs the backward, for which cuDNN builds plans in each thread.
Results compute(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad,
                kernels::MaskKind mask) {
  const auto leaf = [](const Tensor& t) { return t.detach().requires_grad_(); };
  const Tensor leaf_q = leaf(q), leaf_k = leaf(k), leaf_v = leaf(v);
  const Tensor output = TriedAttention::apply(leaf_q, leaf_k, leaf_v, static_cast<int64_t>(mask));
  torch::autograd::backward({output}, {grad});
  return {output.detach(), leaf_q.grad(), leaf_k.grad(), leaf_v.grad()};
}

}  // namespace

std::string try_cudnn(const AttentionTrial& trial, at::Device device) {
  const kernels::AttentionCall& call = trial.call;
  const Tensor q = make_input(trial, trial.heads, call.queries, call.head_dim, 1, device),
               k = make_input(trial, trial.kv_heads, call.keys, call.head_dim, 2, device),
               v = make_input(trial, trial.kv_heads, call.keys, call.v_head_dim, 3, device),
               grad = make_input(trial, trial.heads, call.queries, call.v_head_dim, 4, device);
  Results cudnn;
  try {
    cudnn = compute(q, k, v, grad, call.mask);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;  // the GPU is of no use to this process any more
  } catch (const c10::Error& error) {
    return brief(error);
  }
  kernels::allow_cudnn_attention(false);
  const Results flash = compute(q, k, v, grad, call.mask);
  kernels::allow_cudnn_attention(true);
  const auto norm = [](const Tensor& x) {
    return at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(), false, at::kFloat).item<double>();
  };
  for (const auto& [what, found, wanted] :
       {std::tuple("output", cudnn.output, flash.output),
        std::tuple("gradient of the queries", cudnn.grad_q, flash.grad_q),
        std::tuple("gradient of the keys", cudnn.grad_k, flash.grad_k),
        std::tuple("gradient of the values", cudnn.grad_v, flash.grad_v)}) {
    const double difference = norm(found - wanted), size = norm(wanted);
    if (!(difference <= kLargestError * size))  // nor where one is NaN
      return fmt::format("its {} differs from flash attention's by {:.3g} of {:.3g} (at most {:.0f} % may)",
                         what, difference, size, 100 * kLargestError);
  }
  return "";
}

}  // namespace hyperion::trainer
