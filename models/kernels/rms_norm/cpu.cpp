#include <cmath>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/fused.h"
#include "models/kernels/operators.h"
#include "models/kernels/rms_norm/rms_norm.h"

namespace hyperion::kernels {
namespace {

constexpr int64_t kRowsPerTask = 32;

// Of x, or of residual + x: then both are contiguous, and `sum` is what they add up to.
RmsNormResult fused_forward(const at::Tensor& x, const at::Tensor& weight, double eps,
                            const at::Tensor* residual = nullptr, const at::Tensor* sum = nullptr) {
  const int64_t n = x.size(-1), count = x.numel() / n;
  RmsNormResult result{at::empty_like(residual == nullptr ? x : *residual),
                       at::empty({count}, x.options().dtype(at::kFloat))};
  const at::Tensor w = weight.to(at::kFloat);
  float* rstd = result.rstd.data_ptr<float>();
  with_element_type(x, [&]<typename T>(T) {
    const T* in = x.const_data_ptr<T>();
    const T* added = residual == nullptr ? nullptr : residual->const_data_ptr<T>();
    T* sums = residual == nullptr ? nullptr : sum->mutable_data_ptr<T>();
    T* out = result.output.mutable_data_ptr<T>();
    parallel_for(0, count, kRowsPerTask, [&](int64_t begin, int64_t end) {
      float* row = rows::scratch(0, n);
      for (int64_t r = begin; r < end; ++r) {
        if (added != nullptr)
          rows::add(added + r * n, in + r * n, sums + r * n, row, n);
        else
          rows::widen(in + r * n, row, n);
        rstd[r] =
            1.0F / std::sqrt(rows::sum_of_squares(row, n) / static_cast<float>(n) + static_cast<float>(eps));
        rows::scale(row, rstd[r], w.const_data_ptr<float>(), row, n);
        rows::narrow(row, out + r * n, n);
      }
    });
  });
  return result;
}

// grad_sum: what is added to the gradient of x, contiguous.
std::pair<at::Tensor, at::Tensor> fused_backward(const at::Tensor& grad, const at::Tensor& x,
                                                 const at::Tensor& weight, const at::Tensor& rstd,
                                                 const at::Tensor* grad_sum = nullptr) {
  const int64_t n = x.size(-1), count = x.numel() / n;
  const int64_t tasks = (count + kRowsPerTask - 1) / kRowsPerTask;
  at::Tensor dx = at::empty_like(x);
  at::Tensor dw =
      at::zeros({tasks, n}, x.options().dtype(at::kFloat));  // one row per task, added up in order below
  const at::Tensor w = weight.to(at::kFloat);
  with_element_type(x, [&]<typename T>(T) {
    const T *xs = x.const_data_ptr<T>(), *gs = grad.const_data_ptr<T>();
    const T* added = grad_sum == nullptr ? nullptr : grad_sum->const_data_ptr<T>();
    T* out = dx.mutable_data_ptr<T>();
    parallel_for(0, tasks, 1, [&](int64_t first, int64_t last) {
      float *row = rows::scratch(0, n), *g = rows::scratch(1, n), *d = rows::scratch(2, n);
      for (int64_t r = first * kRowsPerTask; r < std::min(count, last * kRowsPerTask); ++r) {
        rows::widen(xs + r * n, row, n);
        rows::widen(gs + r * n, g, n);
        rows::rms_backward(row, w.const_data_ptr<float>(), g, rstd.const_data_ptr<float>()[r], d,
                           dw.mutable_data_ptr<float>() + r / kRowsPerTask * n, n);
        if (added != nullptr)
          rows::narrow_and_add(d, added + r * n, out + r * n, n);
        else
          rows::narrow(d, out + r * n, n);
      }
    });
  });
  return {dx, dw.sum(0).to(weight.scalar_type())};
}

bool takes_fused_norm_on_gpu(const at::Tensor& x, const at::Tensor& weight) {
  return has_fused_on_gpu("RMSNorm", x,
                          x.scalar_type() == weight.scalar_type() ? "" : "a weight of another dtype");
}

}  // namespace

RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (has_fused(x)) {
    RECORD_FUNCTION("hyperion::rms_norm", std::vector<c10::IValue>({x}));
    return fused_forward(x.contiguous(), weight, eps);
  }
  if (!takes_fused_norm_on_gpu(x, weight)) return plain::rms_norm_forward(x, weight, eps);
  const auto [output, rstd] = at::_fused_rms_norm(x.contiguous(), weight.sizes(), weight, eps);
  return {output, rstd.flatten()};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd) {
  if (has_fused(x)) {
    RECORD_FUNCTION("hyperion::rms_norm_backward", std::vector<c10::IValue>({grad, x}));
    return fused_backward(grad.contiguous(), x.contiguous(), weight, rstd);
  }
  if (!takes_fused_norm_on_gpu(x, weight)) return plain::rms_norm_backward(grad, x, weight, rstd);
  std::vector<int64_t> rows(x.sizes().begin(), x.sizes().end());
  rows.back() = 1;
  auto [dx, dw] = at::_fused_rms_norm_backward(grad.contiguous(), x.contiguous(), weight.sizes(),
                                               rstd.view(rows), weight, {true, true});
  return {std::move(dx), std::move(dw)};
}

AddRmsNormResult add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                      const at::Tensor& weight, double eps) {
  if (takes_fused_norm_on_gpu(x, weight)) return operators::add_rms_norm(x, residual, weight, eps);
  if (!has_fused(x)) return plain::add_rms_norm_forward(x, residual, weight, eps);
  RECORD_FUNCTION("hyperion::add_rms_norm", std::vector<c10::IValue>({x, residual}));
  const at::Tensor whole = residual.contiguous(), sum = at::empty_like(whole);
  auto [output, rstd] = fused_forward(x.contiguous(), weight, eps, &whole, &sum);
  return {sum, std::move(output), std::move(rstd)};
}

std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more) {
  if (takes_fused_norm_on_gpu(sum, weight))
    return operators::add_rms_norm_backward(grad, grad_sum, sum, weight, rstd, more);
  if (!has_fused(sum)) return plain::add_rms_norm_backward(grad, grad_sum, sum, weight, rstd, more);
  RECORD_FUNCTION("hyperion::add_rms_norm_backward", std::vector<c10::IValue>({grad, grad_sum, sum}));
  const at::Tensor others = grad_sum.contiguous();
  return fused_backward(sum_of_terms(grad, more).contiguous(), sum.contiguous(), weight, rstd, &others);
}

at::Tensor sum_of_terms(const at::Tensor& grad, at::TensorList more) {
  at::Tensor others;
  for (size_t i = more.size(); i-- > 0;) others = others.defined() ? others + more[i] : more[i];
  return others.defined() ? others + grad : grad;
}

namespace plain {

RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide_x = x.to(opmath_dtype(x));
  const at::Tensor rstd = at::rsqrt(wide_x.square().mean(-1, /*keepdim=*/true).add_(eps));
  return {(wide_x * rstd).mul_(weight.to(opmath_dtype(x))).to(x.scalar_type()), rstd.flatten()};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd) {
  const at::Tensor wide_grad = grad.to(opmath_dtype(x));
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = 1;
  const at::Tensor factor = rstd.view(shape);
  const at::Tensor normed = x.to(opmath_dtype(x)) * factor;
  const at::Tensor grad_normed = wide_grad * weight.to(opmath_dtype(x));
  const at::Tensor mean = (grad_normed * normed).mean(-1, /*keepdim=*/true);
  const at::Tensor dx = (grad_normed - normed * mean).mul_(factor);
  const at::Tensor dw = (wide_grad * normed).reshape({-1, x.size(-1)}).sum(0);
  return {dx.to(x.scalar_type()), dw.to(weight.scalar_type())};
}

AddRmsNormResult add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                      const at::Tensor& weight, double eps) {
  const at::Tensor sum = residual + x.reshape(residual.sizes());
  auto [output, rstd] = plain::rms_norm_forward(sum, weight, eps);
  return {sum, std::move(output), std::move(rstd)};
}

std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more) {
  auto [dx, dw] = plain::rms_norm_backward(sum_of_terms(grad, more), sum, weight, rstd);
  dx.add_(grad_sum);
  return {dx, dw};
}

}  // namespace plain
}  // namespace hyperion::kernels
