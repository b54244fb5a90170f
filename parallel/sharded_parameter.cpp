#include "parallel/sharded_parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

// Autograd keeps the unsharded leaf (and views of it) alive between forward and backward. They share one
// storage, whose bytes are freed and allocated again while the tensors stay.
void allocate_storage(const at::Tensor& tensor) {
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
at::Tensor tensor_on_storage(const c10::Storage& storage, at::IntArrayRef shape,
                             const at::TensorOptions& options) {
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

at::Tensor tensor_without_bytes(at::IntArrayRef shape, const at::TensorOptions& options) {
  const at::Tensor empty = at::empty({0}, options);
  at::Tensor tensor = tensor_on_storage(empty.storage(), shape, options);
  free_storage(tensor);
  return tensor;
}

}  // namespace

ShardedParameter::ShardedParameter(ParameterPtr parameter, int rank, int world,
                                   const ShardingOptions& options)
    : parameter_(std::move(parameter)), rank_(rank), world_(world) {
  const bool pinned = options.state_device.is_cpu() && !options.device.is_cpu();
  const auto state =
      at::TensorOptions(options.state_dtype).device(options.state_device).pinned_memory(pinned);
  const at::Tensor padded_master = at::zeros({padded_numel()}, state);
  master_ = unpadded(padded_master);
  const bool encoded = options.codec && options.codec->applies(*parameter_);
  if (encoded) {
    all_gather_input_ = at::zeros({padded_numel()}, state.dtype(at::kByte)).view(options.codec->dtype);
    compute_shard_ = master_;
  } else if (options.compute_dtype == options.state_dtype) {
    all_gather_input_ = padded_master;
    compute_shard_ = master_;
  } else {
    all_gather_input_ = at::zeros({padded_numel()}, state.dtype(options.compute_dtype));
    compute_shard_ = unpadded(all_gather_input_);
  }
  direct_ = world == 1 && options.state_device == options.device;
  const auto gathered = all_gather_input_.options().device(options.device).pinned_memory(false);
  all_gather_output_ = direct_ ? all_gather_input_ : tensor_without_bytes({world * padded_numel()}, gathered);
  const auto compute = gathered.dtype(options.compute_dtype);
  if (encoded) {
    parameter_->encoded = tensor_on_storage(all_gather_output_.storage(), parameter_->local, gathered);
    parameter_->encoded_scale = at::ones({}, compute.dtype(at::kFloat));
    parameter_->weight = tensor_without_bytes(parameter_->local, compute);
  } else {
    parameter_->weight = tensor_on_storage(all_gather_output_.storage(), parameter_->local, compute);
  }
  parameter_->weight.requires_grad_();
}

std::vector<Cut> ShardedParameter::cuts() const {
  std::vector<Cut> all = parameter_->cuts;
  all.push_back({.dim = 0, .parts = world_, .index = rank_});
  return all;
}

at::Tensor ShardedParameter::unpadded(const at::Tensor& padded) const {
  std::vector<int64_t> shape = parameter_->local;
  shape[0] = chunk_of(shape[0], world_, rank_).count;
  return padded.narrow(0, 0, shape[0] * parameter_->row_numel()).view(shape);
}

bool ShardedParameter::acquire() {
  if (direct_ || users_++ > 0) return false;
  allocate_storage(all_gather_output_);
  parameter_->derived.reset();
  return true;
}

void ShardedParameter::release() {
  if (direct_) return;
  if (users_ == 0) throw_bug("{}: released more often than acquired", parameter_->fqn);
  if (--users_ > 0) return;
  free_storage(all_gather_output_);
  parameter_->derived.reset();
}

void ShardedParameter::contents_changed() {
  stale_ = true;
  parameter_->derived.reset();
}

void ShardedParameter::encode(const GatherCodec& codec, const at::Tensor& scale) {
  parameter_->encoded_scale.copy_(scale);
  if (master_.numel() > 0) codec.encode(master_, scale.to(master_.device()), unpadded(all_gather_input_));
  stale_ = false;
}

}  // namespace hyperion::parallel
