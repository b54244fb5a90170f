#include "parallel/fsdp/sharded_parameter.h"

#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

at::Tensor tensor_on_storage(const c10::Storage& storage, at::IntArrayRef shape,
                             const at::TensorOptions& options, int64_t offset) {
  at::Tensor tensor = at::empty({0}, options);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

// Returns the matrices of one weight of a pack of stacks, of which `whole` has the storage. `offset` is their
// place in each expert.
at::Tensor matrices_on_storage(const at::Tensor& whole, at::IntArrayRef shape,
                               const std::vector<int64_t>& expert, int64_t offset) {
  at::Tensor tensor = tensor_on_storage(whole.storage(), shape, whole.options(), offset);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, {expert[0] * expert[1], expert[1], 1});
  return tensor;
}

// Returns whether layers read the shard itself: nothing is gathered.
bool reads_shards(int64_t world, const ShardingOptions& options) {
  return world == 1 && options.state_device == options.device;
}

}  // namespace

TensorMemory::TensorMemory(size_t bytes, at::Device device)
    : bytes_(bytes), storage_(at::empty({0}, at::TensorOptions(at::kByte).device(device)).storage()) {
  free();
}

at::Tensor TensorMemory::tensor(at::IntArrayRef shape, const at::TensorOptions& options,
                                int64_t offset) const {
  return tensor_on_storage(storage_, shape, options, offset);
}

void TensorMemory::allocate() {
  auto* storage = storage_.unsafeGetStorageImpl();
  if (storage->nbytes() == bytes_) return;
  storage->set_data_ptr_noswap(c10::GetAllocator(storage->device_type())->allocate(bytes_));
  storage->set_nbytes(bytes_);
}

void TensorMemory::free() {
  auto* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
  storage->set_nbytes(0);
}

PackMemory::PackMemory(Parameter& pack, int world, const ShardingOptions& options) {
  const at::TensorOptions compute = options.computed();
  const int64_t numel = whole_box(pack.local).numel();
  const bool direct = reads_shards(world, options), stacks = pack.local.size() == 3;
  if (stacks) expert = {pack.local[1], pack.local[2]};
  if (direct || stacks) shards = at::zeros({numel / world}, options.state().dtype(options.compute_dtype));
  if (direct) {
    pack.weight = shards.view(pack.local);
  } else {
    gathered = std::make_shared<TensorMemory>(numel * compute.dtype().itemsize(), options.device);
    pack.weight = gathered->tensor(pack.local, compute);
  }
}

ShardedParameter::ShardedParameter(ParameterPtr parameter, Placement placement,
                                   const ShardingOptions& options, PackMemory* pack)
    : parameter_(std::move(parameter)),
      placement_(std::move(placement)),
      blocks_(parameter_->rows()),
      alignment_(options.shard_alignment) {
  for (const Cut& cut : std::span(placement_.cuts).subspan(parameter_->cuts.size())) {
    rank_ = rank_ * cut.parts + cut.index;
    world_ *= cut.parts;
    if (cut.dim > 0) blocks_ *= cut.parts;
  }
  direct_ = reads_shards(world_, options);
  if (pack != nullptr && !pack->expert.empty())
    lie_in_stack(options, *pack);
  else
    lie_alone_or_in_rows(options, pack);
  parameter_->weight.requires_grad_(parameter_->trainable);
}

void ShardedParameter::lie_alone_or_in_rows(const ShardingOptions& options, PackMemory* pack) {
  const int64_t numel = padded_numel();
  const at::TensorOptions state = options.state();
  const bool encoded = options.codec && options.codec->applies(*parameter_);
  const bool same_dtype = options.compute_dtype == options.state_dtype && !encoded;
  const int64_t offset = pack == nullptr ? 0 : std::exchange(pack->taken, pack->taken + numel);
  if (pack != nullptr && direct_)
    all_gather_input_ = pack->shards.narrow(0, offset, numel);
  else
    all_gather_input_ = encoded ? at::zeros({numel}, state.dtype(at::kByte)).view(options.codec->dtype)
                                : at::zeros({numel}, state.dtype(options.compute_dtype));
  master_ = unpadded(same_dtype ? all_gather_input_ : at::zeros({numel}, state));
  compute_shard_ = same_dtype || encoded ? master_ : unpadded(all_gather_input_);
  const auto gathered = all_gather_input_.options().device(options.device).pinned_memory(false);
  if (direct_) {
    all_gather_output_ = all_gather_input_;
  } else {
    gathered_ = pack != nullptr ? pack->gathered
                                : std::make_shared<TensorMemory>(world_ * numel * gathered.dtype().itemsize(),
                                                                 options.device);
    all_gather_output_ = gathered_->tensor({world_ * numel}, gathered, world_ * offset);
  }
  const at::TensorOptions compute = options.computed();
  const auto unsharded = [&](const at::TensorOptions& type) {
    return tensor_on_storage(all_gather_output_.storage(), parameter_->local, type,
                             all_gather_output_.storage_offset());
  };
  if (encoded) {
    parameter_->encoded = {.values = unsharded(gathered),
                           .scale = at::ones({}, compute.dtype(at::kFloat)),
                           .inverse = at::ones({}, compute.dtype(at::kFloat))};
    parameter_->weight = TensorMemory(0, options.device).tensor(parameter_->local, compute);
  } else {
    parameter_->weight = unsharded(compute);
  }
}

// Shards and gathered weights have the gaps of the pack; master, gradient and optimizer state have none.
void ShardedParameter::lie_in_stack(const ShardingOptions& options, PackMemory& pack) {
  const int64_t numel = padded_numel(), before = std::exchange(pack.taken, pack.taken + numel);
  const at::Tensor& whole = parameter_->pack->weight;
  master_ = unpadded(at::zeros({numel}, options.state()));
  const int64_t place = before / master_.size(0);
  compute_shard_ = matrices_on_storage(pack.shards, master_.sizes(), pack.expert, place);
  parameter_->weight = matrices_on_storage(whole, parameter_->local, pack.expert, place);
  all_gather_input_ = before == 0 ? pack.shards : pack.shards.narrow(0, 0, 0);
  gathered_ = pack.gathered;
  const at::Tensor all = direct_ ? pack.shards : gathered_->tensor({whole.numel()}, whole.options());
  all_gather_output_ = before == 0 ? all : all.narrow(0, 0, 0);
}

at::Tensor ShardedParameter::unpadded(const at::Tensor& padded) const {
  const Box own = box();
  return padded.narrow(0, 0, own.numel()).view(own.shape);
}

bool ShardedParameter::acquire() {
  if (direct_ || users_++ > 0) return false;
  gathered_->allocate();
  drop_derived();
  return true;
}

void ShardedParameter::release() {
  if (direct_) return;
  if (users_ == 0) throw_bug("{}: released more often than acquired", parameter_->fqn);
  if (--users_ > 0) return;
  gathered_->free();
  drop_derived();
}

void ShardedParameter::allocate_grad() {
  if (grad_memory_) grad_memory_->allocate();
}

void ShardedParameter::start_grad() {
  allocate_grad();
  holds_grad_ = true;
}

void ShardedParameter::add_to_grad(const at::Tensor& term) {
  const bool first = !holds_grad_;
  start_grad();  // whose memory views need
  const at::Tensor own = padded_grad_.narrow(0, 0, term.numel());
  if (!first) {
    own.add_(term.to(own.device()));
    return;
  }
  own.copy_(term);
  if (const int64_t rest = padded_grad_.numel() - own.numel(); rest > 0)
    padded_grad_.narrow(0, own.numel(), rest).zero_();
}

void ShardedParameter::drop_grad() {
  if (grad_memory_) grad_memory_->free();
  holds_grad_ = false;
}

void ShardedParameter::contents_changed() {
  stale_ = true;
  drop_derived();
}

void ShardedParameter::drop_derived() const {
  parameter_->derived.reset();
  if (parameter_->pack) parameter_->pack->derived.reset();
}

void ShardedParameter::encode(const GatherCodec& codec) {
  if (master_.numel() > 0)
    codec.encode(master_, parameter_->encoded.scale.to(master_.device()), unpadded(all_gather_input_));
  stale_ = false;
}

}  // namespace hyperion::parallel
