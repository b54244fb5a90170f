#include "parallel/sharded_parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include "base/error.h"

namespace hyperion {
namespace {

// Autograd keeps the unsharded leaf (and views of it) alive between forward and backward. They share one
// storage, whose bytes are given back and fetched again without their noticing.
void give_storage(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(bytes));
  storage->set_nbytes(bytes);
}

void free_storage(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

// A tensor of this shape over `storage`, which may be without bytes for now.
at::Tensor over_storage(const c10::Storage& storage, at::IntArrayRef shape,
                        const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

}  // namespace

ShardedParameter::ShardedParameter(ParameterPtr parameter, int rank, int world,
                                   const ShardingOptions& options)
    : parameter_(std::move(parameter)), layout_{parameter_->rows(), world}, rank_(rank) {
  const bool pinned = options.state_device.is_cpu() && !options.device.is_cpu();
  const auto state =
      at::TensorOptions(options.state_dtype).device(options.state_device).pinned_memory(pinned);
  const at::Tensor padded_master = at::zeros({padded_numel()}, state);
  master_ = unpadded(padded_master);
  if (options.compute_dtype == options.state_dtype) {
    padded_compute_ = padded_master;
    compute_shard_ = master_;
  } else {
    padded_compute_ = at::zeros({padded_numel()}, state.dtype(options.compute_dtype));
    compute_shard_ = unpadded(padded_compute_);
  }
  direct_ = world == 1 && options.state_device == options.device;
  const auto compute = at::TensorOptions(options.compute_dtype).device(options.device);
  if (direct_) {
    gathered_ = padded_compute_;
  } else {
    const at::Tensor empty = at::empty({0}, compute);
    gathered_ = over_storage(empty.storage(), {world * padded_numel()}, compute);
    free_storage(gathered_);
  }
  parameter_->weight = over_storage(gathered_.storage(), parameter_->shape, compute);
  parameter_->weight.requires_grad_();
}

at::Tensor ShardedParameter::unpadded(const at::Tensor& padded) const {
  std::vector<int64_t> shape = parameter_->shape;
  shape[0] = layout_.count(rank_);
  return padded.narrow(0, 0, shape[0] * parameter_->row_numel()).view(shape);
}

bool ShardedParameter::acquire() {
  if (direct_ || users_++ > 0) return false;
  give_storage(gathered_);
  return true;
}

void ShardedParameter::release() {
  if (direct_) return;
  if (users_ == 0) throw_bug("{}: released more often than acquired", parameter_->fqn);
  if (--users_ == 0) free_storage(gathered_);
}

int64_t ShardedParameter::unsharded_bytes() const {
  return direct_ ? 0 : static_cast<int64_t>(gathered_.storage().nbytes());
}

}  // namespace hyperion
