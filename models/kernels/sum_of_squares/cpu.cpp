#include <type_traits>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/sum_of_squares/sum_of_squares.h"

namespace hyperion::kernels::cpu {

at::Tensor sum_of_squares(const at::Tensor& given) {
  constexpr int64_t kBlock = 4096;
  const at::Tensor x = given.contiguous();
  const int64_t n = x.numel(), blocks = (n + kBlock - 1) / kBlock;
  const at::Tensor partial = at::zeros({blocks}, at::TensorOptions(at::kDouble));
  with_element_type(x, [&]<typename T>(T) {
    parallel_for(0, blocks, 8, [&](int64_t begin, int64_t end) {
      float* row = thread_scratch(kBlock);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t count = std::min(kBlock, n - block * kBlock);
        const T* from = x.const_data_ptr<T>() + block * kBlock;
        const float* numbers = row;
        if constexpr (std::is_same_v<T, float>)
          numbers = from;  // a copy would take longer than the sum
        else
          rows::widen(from, row, count);
        partial.mutable_data_ptr<double>()[block] = static_cast<double>(rows::sum_of_squares(numbers, count));
      }
    });
  });
  // The sums are added in turn: a sum over threads would have an order that depends on them.
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += partial.const_data_ptr<double>()[block];
  return at::scalar_tensor(sum, partial.options());
}

}  // namespace hyperion::kernels::cpu
