#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/rms_norm/rms_norm.h"

namespace hyperion::kernels::cpu {
namespace {

constexpr int64_t kRowsPerTask = 32;

// Normalizes x, or residual + x: then both are contiguous, and `sum` is their sum.
RmsNormResult forward(const at::Tensor& x, const at::Tensor& weight, double eps,
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
      float* row = thread_scratch(n);
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
std::pair<at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& x,
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
      float *row = thread_scratch(n), *g = thread_scratch(n, 1), *d = thread_scratch(n, 2);
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

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return forward(x.contiguous(), weight, eps);
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd) {
  return backward(grad.contiguous(), x.contiguous(), weight, rstd);
}

AddRmsNormResult add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                              double eps) {
  const at::Tensor dense = residual.contiguous(), sum = at::empty_like(dense);
  auto [output, rstd] = forward(x.contiguous(), weight, eps, &dense, &sum);
  return {sum, std::move(output), std::move(rstd)};
}

std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more) {
  const at::Tensor others = grad_sum.contiguous();
  return backward(sum_of_terms(grad, more).contiguous(), sum.contiguous(), weight, rstd, &others);
}

}  // namespace hyperion::kernels::cpu
