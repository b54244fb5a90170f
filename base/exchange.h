// How layers whose ranks share the work of one batch exchange tensors. parallel/'s Communicator is one; the
// trainer hands it to the models, which know no backend.
//
// Every rank of the group must start the same operations in the same order. Tensors must be contiguous, on
// the group's device, and must not be touched between start and wait.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace hyperion {

// An operation in flight. Dropping it without wait() is allowed, but then the tensors must outlive the
// group's next operation and their content is unspecified.
class [[nodiscard]] Pending {
 public:
  Pending() = default;  // already complete
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}
  Pending& operator=(Pending&& other) noexcept {
    finish_ = std::exchange(other.finish_, nullptr);
    return *this;
  }

  bool done() const { return finish_ == nullptr; }
  // Throws Error(kCommunication) naming rank, group, operation and phase. The second call does nothing.
  void wait() {
    if (auto finish = std::exchange(finish_, nullptr)) finish();
  }

 private:
  std::function<void()> finish_;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;  // this rank's index in the group
  virtual int size() const = 0;

  // out[r] = in of rank r. out has size() times the elements of in, same dtype; `in` may be out's own slot.
  virtual Pending start_all_gather_into(const at::Tensor& out, const at::Tensor& in) = 0;

  // out = sum over ranks r of (chunk rank() of r's in). in has size() times the elements of out, same dtype,
  // one of float32, float64, bfloat16, float16, int64, int32; 16-bit floats add up in float32.
  virtual Pending start_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) = 0;

  // In place; dtypes as above. The result has the same bits on every rank.
  virtual Pending start_all_reduce_sum(const at::Tensor& tensor) = 0;
  virtual Pending start_all_reduce_max(const at::Tensor& tensor) = 0;
};

}  // namespace hyperion
