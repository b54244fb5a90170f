#include "parallel/fsdp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "parallel/trace_range.h"

namespace hyperion {
namespace {

// Gathers move bytes, whatever they mean: a group's parameters may differ in dtype.
at::Tensor bytes(const at::Tensor& flat) {
  return flat.view(at::kByte);
}

}  // namespace

FsdpContext::FsdpContext(Communicator& shard, Communicator& replicate, const ShardingOptions& options)
    : shard_(shard),
      replicate_(replicate),
      options_(options),
      gather_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)),
      reduce_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)) {}

void FsdpContext::finish_reductions() {
  if (auto finish = std::exchange(finish_reduce_, nullptr)) finish();
  DeviceStream::current(options_.device).wait(reduced_);
  reduce_input_.reset();
}

void encode_changed(const FsdpContext& context, const std::vector<ShardedParameterPtr>& parameters) {
  std::vector<ShardedParameter*> changed;
  std::vector<at::Tensor> masters;
  for (const ShardedParameterPtr& parameter : parameters) {
    if (!parameter->needs_encoding()) continue;
    changed.push_back(parameter.get());
    masters.push_back(parameter->master());
  }
  if (changed.empty()) return;
  at::NoGradGuard no_grad;
  const GatherCodec& codec = *context.options().codec;
  const at::Tensor maxima = codec.statistics(masters, context.options().device);
  context.shard().all_reduce_max(maxima);
  const at::Tensor scales = codec.scales(maxima);
  for (size_t i = 0; i < changed.size(); ++i)
    changed[i]->encode(codec, scales.select(0, static_cast<int64_t>(i)));
}

ShardGroup::ShardGroup(std::string name, const std::vector<ParameterPtr>& parameters,
                       std::map<const Parameter*, ShardedParameterPtr>& known, FsdpContext& context)
    : name_(std::move(name)), context_(context) {
  int64_t owned_numel = 0;
  for (const ParameterPtr& parameter : parameters) {
    ShardedParameterPtr& sharded = known[parameter.get()];
    if (!sharded) {
      sharded = std::make_shared<ShardedParameter>(parameter, context.shard().rank(), context.shard().size(),
                                                   context.options());
      owned_.push_back(sharded);
      owned_numel += sharded->padded_numel();
    }
    parameters_.push_back(sharded);
  }
  const ShardingOptions& options = context.options();
  const bool pinned = options.state_device.is_cpu() && !options.device.is_cpu();
  grads_ =
      at::zeros({owned_numel},
                at::TensorOptions(options.state_dtype).device(options.state_device).pinned_memory(pinned));
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : owned_) {
    parameter->bind_grad(grads_.narrow(0, offset, parameter->padded_numel()));
    offset += parameter->padded_numel();
  }
}

void ShardGroup::start_unshard() {
  if (state_ != State::kSharded) return;
  state_ = State::kGathering;
  encode_changed(context_, parameters_);
  std::vector<ShardedParameter*> missing;
  for (const ShardedParameterPtr& parameter : parameters_)
    if (parameter->acquire()) missing.push_back(parameter.get());
  if (missing.empty()) return;
  context_.event("gather", name_);
  const TraceRange range("all-gather", name_);
  // The storage was allocated on the compute stream, whose earlier work may still be using those bytes.
  context_.gather_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.gather_stream_);
  if (context_.shard().backend() == "gloo")
    start_flat_gather(missing);
  else
    start_separate_gathers(missing);
  gathered_.record(context_.gather_stream_);
}

// One collective for the group, then a copy into each parameter: over sockets the number of messages is what
// costs.
void ShardGroup::start_flat_gather(const std::vector<ShardedParameter*>& missing) {
  int64_t sum = 0;
  for (const ShardedParameter* parameter : missing) sum += static_cast<int64_t>(parameter->wire().nbytes());
  const int64_t world = context_.shard().size();
  const at::Tensor wire =
      at::empty({world, sum}, at::TensorOptions(at::kByte).device(context_.options().device));
  const at::Tensor own = wire.select(0, context_.shard().rank());
  int64_t offset = 0;
  for (const ShardedParameter* parameter : missing) {
    const at::Tensor part = bytes(parameter->wire());
    own.narrow(0, offset, part.numel()).copy_(part);
    offset += part.numel();
  }
  pending_.push_back(context_.shard().start_all_gather_into(wire.view({-1}), own));
  copy_out_ = [wire, missing, world] {
    int64_t offset = 0;
    for (const ShardedParameter* parameter : missing) {
      const auto count = static_cast<int64_t>(parameter->wire().nbytes());
      bytes(parameter->gathered()).view({world, count}).copy_(wire.narrow(1, offset, count));
      offset += count;
    }
  };
}

// One collective a parameter, landing in place: no copy afterwards.
void ShardGroup::start_separate_gathers(const std::vector<ShardedParameter*>& missing) {
  for (const ShardedParameter* parameter : missing) {
    const at::Tensor all = bytes(parameter->gathered()), part = bytes(parameter->wire());
    const at::Tensor own = all.narrow(0, context_.shard().rank() * part.numel(), part.numel());
    own.copy_(part, /*non_blocking=*/true);
    pending_.push_back(context_.shard().start_all_gather_into(all, own));
  }
}

void ShardGroup::finish_unshard() {
  start_unshard();
  if (state_ == State::kUnsharded) return;
  const TraceRange range("all-gather wait", name_);
  for (Pending& operation : pending_) operation.wait();
  pending_.clear();
  DeviceStream::current(context_.options().device).wait(gathered_);
  if (auto copy_out = std::exchange(copy_out_, nullptr)) copy_out();
  state_ = State::kUnsharded;
}

void ShardGroup::reshard() {
  if (state_ == State::kSharded) return;
  finish_unshard();  // a gather under way must not write into freed memory
  context_.event("free", name_);
  for (const ShardedParameterPtr& parameter : parameters_) parameter->release();
  state_ = State::kSharded;
}

void ShardGroup::zero_grads() {
  grads_.zero_();
}

void ShardGroup::reduce(bool last_microbatch) {
  context_.event("reduce", name_);
  context_.finish_reductions();
  at::NoGradGuard no_grad;
  if (context_.shard().size() > 1) {
    start_reduce_scatter();
  } else {
    for (const ShardedParameterPtr& parameter : parameters_) {
      at::Tensor& grad = parameter->parameter().weight.mutable_grad();
      if (grad.defined()) parameter->grad().add_(grad.to(parameter->grad().device()));
      grad.reset();
    }
  }
  if (last_microbatch && context_.replicate().size() > 1) sum_replicas();
}

// [world, sum of padded rows] in the reduce dtype: row r is what rank r will hold, in the order of
// parameters().
at::Tensor ShardGroup::pack_gradients() {
  const int64_t world = context_.shard().size();
  int64_t sum = 0;
  for (const ShardedParameterPtr& parameter : parameters_) sum += parameter->padded_numel();
  const ShardingOptions& options = context_.options();
  const at::Tensor wire =
      at::empty({world, sum}, at::TensorOptions(options.reduce_dtype).device(options.device));
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : parameters_) {
    const int64_t count = parameter->padded_numel();
    const int64_t row_numel = parameter->parameter().row_numel();
    at::Tensor& grad = parameter->parameter().weight.mutable_grad();
    for (int64_t rank = 0; rank < world; ++rank) {
      const int64_t used = grad.defined() ? parameter->layout().count(rank) * row_numel : 0;
      at::Tensor slot = wire.select(0, rank).narrow(0, offset, count);
      if (used > 0)
        slot.narrow(0, 0, used)
            .copy_(grad.reshape(-1).narrow(0, parameter->layout().begin(rank) * row_numel, used));
      if (used < count) slot.narrow(0, used, count - used).zero_();
    }
    grad.reset();
    offset += count;
  }
  return wire;
}

void ShardGroup::add_to_gradients(const at::Tensor& reduced) {
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : parameters_) {
    const at::Tensor part = parameter->unpadded(reduced.narrow(0, offset, parameter->padded_numel()));
    parameter->grad().add_(part.to(parameter->grad().device()));
    offset += parameter->padded_numel();
  }
}

void ShardGroup::start_reduce_scatter() {
  const TraceRange range("reduce-scatter", name_);
  const at::Tensor wire = pack_gradients();
  context_.reduce_input_ = wire;
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  const at::Tensor out = at::empty({wire.size(1)}, wire.options());
  auto pending = std::make_shared<Pending>(context_.shard().start_reduce_scatter_sum(out, wire.view({-1})));
  context_.finish_reduce_ = [this, pending, out] {
    const TraceRange range("reduce-scatter wait", name_);
    at::NoGradGuard no_grad;
    StreamScope inner(context_.reduce_stream_);
    pending->wait();
    add_to_gradients(out);
    context_.reduced_.record(context_.reduce_stream_);
  };
}

// Once a step: the group's own gradients lie in a row, so this is one all-reduce. A tied weight belongs to
// the first unit, whose backward comes last, so its sum is complete here.
void ShardGroup::sum_replicas() {
  if (grads_.numel() == 0) return;
  auto previous = std::exchange(context_.finish_reduce_, nullptr);
  auto pending = std::make_shared<Pending>();
  if (previous) previous();
  context_.event("all_reduce", name_);
  const TraceRange range("all-reduce", name_);
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  *pending = context_.replicate().start_all_reduce_sum(grads_);
  context_.finish_reduce_ = [this, pending] {
    const TraceRange range("all-reduce wait", name_);
    StreamScope inner(context_.reduce_stream_);
    pending->wait();
    context_.reduced_.record(context_.reduce_stream_);
  };
}

int64_t ShardGroup::unsharded_bytes() const {
  int64_t bytes = 0;
  for (const ShardedParameterPtr& parameter : parameters_) bytes += parameter->unsharded_bytes();
  return bytes;
}

}  // namespace hyperion
