#include "parallel/fsdp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "parallel/trace_range.h"

namespace hyperion {
namespace {

// All-gathers move bytes: the parameters of a group may differ in dtype.
at::Tensor as_bytes(const at::Tensor& flat) {
  return flat.view(at::kByte);
}

}  // namespace

FsdpContext::FsdpContext(Communicator& shard, Communicator& replicate, const ShardingOptions& options)
    : shard_(shard),
      replicate_(replicate),
      options_(options),
      gather_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)),
      reduce_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)) {}

void FsdpContext::finish_reduction() {
  if (in_flight_) complete_on_reduce_stream(*in_flight_);
  DeviceStream::current(options_.device).wait(reduced_);
  // The send buffer belongs to the compute stream's memory: only now may later work of that stream reuse it.
  in_flight_.reset();
}

void FsdpContext::complete_on_reduce_stream(Reduction& reduction) {
  const bool scattered = reduction.local_sum.defined();
  const TraceRange range(scattered ? "reduce-scatter wait" : "all-reduce wait", reduction.group->name());
  at::NoGradGuard no_grad;
  StreamScope scope(reduce_stream_);
  reduction.operation.wait();
  if (scattered) reduction.group->add_to_sharded_gradients(reduction.local_sum);
  reduced_.record(reduce_stream_);
}

void encode_changed_weights(const FsdpContext& context, const std::vector<ShardedParameterPtr>& parameters) {
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
  encode_changed_weights(context_, parameters_);
  // A tied weight may be gathered already, for the other unit that uses it.
  std::vector<ShardedParameter*> missing;
  for (const ShardedParameterPtr& parameter : parameters_)
    if (parameter->acquire()) missing.push_back(parameter.get());
  if (missing.empty()) return;
  const TraceRange range("all-gather", name_);
  // On a GPU the all-gather runs on a stream of its own and overlaps the computation of the unit before. It
  // must not start writing before the compute stream's earlier work is done: that may still read the memory
  // that this group's weights have just been given.
  context_.gather_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.gather_stream_);
  if (context_.shard().prefers_one_message())
    start_flat_all_gather(missing);
  else
    start_separate_all_gathers(missing);
  gathered_.record(context_.gather_stream_);  // finish_unshard() makes the compute stream wait for this point
}

// One collective for the group, and then a copy into each parameter.
void ShardGroup::start_flat_all_gather(const std::vector<ShardedParameter*>& missing) {
  int64_t sum = 0;
  for (const ShardedParameter* parameter : missing)
    sum += static_cast<int64_t>(parameter->all_gather_input().nbytes());
  flat_buffer_ = at::empty({context_.shard().size(), sum},
                           at::TensorOptions(at::kByte).device(context_.options().device));
  in_flat_buffer_ = missing;
  const at::Tensor own = flat_buffer_.select(0, context_.shard().rank());
  int64_t offset = 0;
  for (const ShardedParameter* parameter : missing) {
    const at::Tensor part = as_bytes(parameter->all_gather_input());
    own.narrow(0, offset, part.numel()).copy_(part);
    offset += part.numel();
  }
  all_gathers_.push_back(context_.shard().start_all_gather_into(flat_buffer_.view({-1}), own));
}

void ShardGroup::copy_out_of_flat_buffer() {
  int64_t offset = 0;
  for (const ShardedParameter* parameter : in_flat_buffer_) {
    const auto count = static_cast<int64_t>(parameter->all_gather_input().nbytes());
    as_bytes(parameter->all_gather_output())
        .view({context_.shard().size(), count})
        .copy_(flat_buffer_.narrow(1, offset, count));
    offset += count;
  }
  flat_buffer_.reset();
}

// One collective per parameter, which writes the weight in place: no copy afterwards.
void ShardGroup::start_separate_all_gathers(const std::vector<ShardedParameter*>& missing) {
  for (const ShardedParameter* parameter : missing) {
    const at::Tensor all = as_bytes(parameter->all_gather_output());
    const at::Tensor part = as_bytes(parameter->all_gather_input());
    const at::Tensor own = all.narrow(0, context_.shard().rank() * part.numel(), part.numel());
    own.copy_(part, /*non_blocking=*/true);
    all_gathers_.push_back(context_.shard().start_all_gather_into(all, own));
  }
}

void ShardGroup::finish_unshard() {
  start_unshard();
  if (state_ == State::kUnsharded) return;
  const TraceRange range("all-gather wait", name_);
  for (Pending& operation : all_gathers_) operation.wait();  // blocks the host on a CPU only
  all_gathers_.clear();
  DeviceStream::current(context_.options().device).wait(gathered_);
  if (flat_buffer_.defined()) copy_out_of_flat_buffer();
  state_ = State::kUnsharded;
}

void ShardGroup::reshard() {
  if (state_ == State::kSharded) return;
  finish_unshard();  // an all-gather in flight must not write into freed memory
  for (const ShardedParameterPtr& parameter : parameters_) parameter->release();
  state_ = State::kSharded;
}

void ShardGroup::zero_grads() {
  grads_.zero_();
}

void ShardGroup::reduce(bool last_microbatch) {
  // The reduction of the unit before has overlapped this unit's backward. It is finished before the next one
  // starts, so that the buffers of one unit are the most that reductions hold.
  context_.finish_reduction();
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
  if (last_microbatch && context_.replicate().size() > 1) start_replica_all_reduce();
}

// [world, sum of padded rows] in the reduce dtype: row r is what rank r will hold, in the order of
// parameters(). Frees the gradients that it copies.
at::Tensor ShardGroup::pack_gradients() {
  const int64_t world = context_.shard().size();
  int64_t sum = 0;
  for (const ShardedParameterPtr& parameter : parameters_) sum += parameter->padded_numel();
  const ShardingOptions& options = context_.options();
  const at::Tensor packed =
      at::empty({world, sum}, at::TensorOptions(options.reduce_dtype).device(options.device));
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : parameters_) {
    const int64_t count = parameter->padded_numel();
    const int64_t row_numel = parameter->parameter().row_numel();
    at::Tensor& grad = parameter->parameter().weight.mutable_grad();
    for (int64_t rank = 0; rank < world; ++rank) {
      // Ranks at the end may hold fewer rows than the first, or none: the rest is padding.
      const int64_t used = grad.defined() ? parameter->layout().count(rank) * row_numel : 0;
      at::Tensor slot = packed.select(0, rank).narrow(0, offset, count);
      if (used > 0)
        slot.narrow(0, 0, used)
            .copy_(grad.reshape(-1).narrow(0, parameter->layout().begin(rank) * row_numel, used));
      if (used < count) slot.narrow(0, used, count - used).zero_();
    }
    grad.reset();
    offset += count;
  }
  return packed;
}

void ShardGroup::start_reduce_scatter() {
  const TraceRange range("reduce-scatter", name_);
  const at::Tensor packed = pack_gradients();
  // The reduction runs on a stream of its own, overlapping the backward of the next unit, once the compute
  // stream has packed the gradients.
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  const at::Tensor local_sum = at::empty({packed.size(1)}, packed.options());
  Pending operation = context_.shard().start_reduce_scatter_sum(local_sum, packed.view({-1}));
  context_.in_flight_.emplace(FsdpContext::Reduction{this, std::move(operation), packed, local_sum});
}

void ShardGroup::add_to_sharded_gradients(const at::Tensor& local_sum) {
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : parameters_) {
    const at::Tensor part = parameter->unpadded(local_sum.narrow(0, offset, parameter->padded_numel()));
    parameter->grad().add_(part.to(parameter->grad().device()));
    offset += parameter->padded_numel();
  }
}

// Once a step: the group's own gradients are one tensor, so this is one all-reduce. A tied weight belongs to
// the first unit, whose backward comes last, so its sum is complete here.
void ShardGroup::start_replica_all_reduce() {
  if (grads_.numel() == 0) return;
  at::Tensor send_buffer;
  if (context_.in_flight_) {  // this group's reduce-scatter: its result is what the replicas add up
    context_.complete_on_reduce_stream(*context_.in_flight_);
    send_buffer = context_.in_flight_->send_buffer;
  }
  const TraceRange range("all-reduce", name_);
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  Pending operation = context_.replicate().start_all_reduce_sum(grads_);
  context_.in_flight_.emplace(
      FsdpContext::Reduction{this, std::move(operation), send_buffer, /*local_sum=*/{}});
}

}  // namespace hyperion
