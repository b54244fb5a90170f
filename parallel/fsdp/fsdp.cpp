#include "parallel/fsdp/fsdp.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_chunk_cat.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "parallel/comm/step_timer.h"
#include "parallel/comm/trace_range.h"
#include "parallel/fsdp/gradient_pack.h"

namespace hyperion::parallel {
namespace {

// The dtype of sums over microbatches, in whatever dtype they are sent.
constexpr at::ScalarType kSumDtype = at::kFloat;

// Returns the memory of each pack of these parameters whose weights can be stored contiguously. A weight that
// is gathered with padding behind it, or encoded with a scale of its own, cannot, nor can a frozen one next
// to others. Nor can stacks whose masters are gathered or read: the optimizer reads those without gaps.
std::map<const Parameter*, PackMemory> pack_memory(const std::vector<ParameterPtr>& parameters, int world,
                                                   const ShardingOptions& options) {
  if (!options.pack_weights) return {};
  std::map<Parameter*, bool> fits;
  for (const ParameterPtr& parameter : parameters) {
    if (!parameter->pack) continue;
    const auto [pack, is_first] = fits.try_emplace(parameter->pack.get(), true);
    // The dimension of a matrix's rows, also in a stack of matrices; a bias has no other.
    const size_t dim = std::max<size_t>(parameter->local.size(), 2) - 2;
    if (is_first) {
      pack->first->local = parameter->local;
      pack->first->local[dim] = 0;
      pack->first->trainable = parameter->trainable;
    }
    pack->first->local[dim] += parameter->local[dim];
    if (parameter->rows() % world != 0 || (options.codec && options.codec->applies(*parameter)) ||
        parameter->trainable != pack->first->trainable ||
        (dim > 0 && options.compute_dtype == options.state_dtype))
      pack->second = false;
  }
  std::map<const Parameter*, PackMemory> memory;
  for (const auto& [pack, fit] : fits)
    if (fit) memory.emplace(pack, PackMemory(*pack, world, options));
  return memory;
}

}  // namespace

FsdpContext::FsdpContext(const Mesh& mesh, int rank, Communicator& shard, Communicator& replicate,
                         const ShardingOptions& options, Communicator* tensor)
    : mesh_(mesh),
      rank_(rank),
      shard_(shard),
      replicate_(replicate),
      tensor_(tensor),
      options_(options),
      gather_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)),
      reduce_stream_(DeviceStream::from_pool(options.device, /*high_priority=*/true)) {}

FsdpContext::FsdpContext(const FsdpContext& dense, Communicator& shard)
    : mesh_(dense.mesh_),
      rank_(dense.rank_),
      shard_(shard),
      replicate_(dense.replicate_),
      tensor_(nullptr),
      options_(dense.options_),
      gather_stream_(dense.gather_stream_),
      reduce_stream_(dense.reduce_stream_) {}

void FsdpContext::finish_reduction() {
  if (!in_flight_) return;
  complete_on_reduce_stream(*in_flight_);
  RankWait wait(options_.device.type());
  DeviceStream::current(options_.device).wait(reduced_);
  wait.done();
  // The sent tensors belong to the compute stream's memory: only now may later work of that stream reuse it.
  in_flight_.reset();
}

void FsdpContext::complete_on_reduce_stream(Reduction& reduction) {
  const TraceRange range(reduction.range, reduction.group->name());
  at::NoGradGuard no_grad;
  StreamScope scope(reduce_stream_);
  reduction.operation.wait();
  if (reduction.local_sum.defined()) reduction.group->add_to_sharded_gradients(reduction.local_sum);
  reduced_.record(reduce_stream_);
}

void FsdpContext::sum_over_tensor_ranks(const std::vector<at::Tensor>& replicated) const {
  if (replicated.empty()) return;
  const TraceRange range("all-reduce", "replicated gradients");
  at::NoGradGuard no_grad;
  at::Tensor packed = at::cat(replicated).to(options_.device);
  if (!tensor_->takes_host_tensors() && replicate_.size() > 1 && tensor_->size() > 2) {
    // Replicas must get the same bits, and their groups of NCCL may add up in different orders.
    const at::Tensor all = at::empty({tensor_->size(), packed.numel()}, packed.options());
    tensor_->all_gather_into(all, packed);
    packed = all[0];
    for (int64_t rank = 1; rank < all.size(0); ++rank) packed.add_(all[rank]);
  } else {
    tensor_->all_reduce_sum(packed);
  }
  int64_t offset = 0;
  for (const at::Tensor& gradient : replicated) {
    gradient.copy_(packed.narrow(0, offset, gradient.numel()));
    offset += gradient.numel();
  }
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
  if (context.tensor() != nullptr) context.tensor()->all_reduce_max(maxima);
  const auto [scales, inverses] = codec.scales(maxima);
  std::vector<at::Tensor> own, found;  // copied by a few kernels for all
  for (size_t i = 0; i < changed.size(); ++i) {
    const Parameter& parameter = changed[i]->parameter();
    own.insert(own.end(), {parameter.encoded.scale, parameter.encoded.inverse});
    const auto index = static_cast<int64_t>(i);
    found.insert(found.end(), {scales.select(0, index), inverses.select(0, index)});
  }
  at::_foreach_copy_(own, found);
  for (ShardedParameter* parameter : changed) parameter->encode(codec);
}

ShardGroup::ShardGroup(std::string name, const std::vector<ParameterPtr>& parameters,
                       std::map<const Parameter*, ShardedParameterPtr>& known, FsdpContext& context,
                       const std::set<const Parameter*>& copies)
    : name_(std::move(name)), context_(context) {
  const ShardingOptions& options = context.options();
  std::map<const Parameter*, PackMemory> packs = pack_memory(parameters, context.shard().size(), options);
  int64_t owned_numel = 0;
  for (const ParameterPtr& parameter : parameters) {
    ShardedParameterPtr& sharded = known[parameter.get()];
    if (!sharded) {
      const auto pack = packs.find(parameter->pack.get());
      sharded = std::make_shared<ShardedParameter>(parameter, context.placement(*parameter), options,
                                                   pack == packs.end() ? nullptr : &pack->second);
      owned_.push_back(sharded);
      if (parameter->trainable) {
        owned_trained_.push_back(sharded);
        owned_numel += sharded->aligned_numel();
      }
    }
    parameters_.push_back(sharded);
    if (parameter->trainable) trained_.push_back(sharded);
  }
  // Memory of a GPU is only held while a step has gradients; a CPU's would cost a page fault for each page.
  const at::TensorOptions state = options.state();
  std::shared_ptr<TensorMemory> memory;
  if (options.state_device.is_cuda()) {
    memory = std::make_shared<TensorMemory>(owned_numel * state.dtype().itemsize(), options.state_device);
    memory->allocate();  // views are made of tensors that have it
  }
  grads_ = memory ? memory->tensor({owned_numel}, state) : at::zeros({owned_numel}, state);
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : owned_trained_) {
    parameter->bind_grad(grads_.narrow(0, offset, parameter->aligned_numel()), memory);
    offset += parameter->aligned_numel();
  }
  make_local_gradients(copies);
  if (memory) memory->free();
  choose_gradient_dtypes(parameters);
  plan_parts();
  int64_t largest = 0;
  for (const ShardedParameterPtr& parameter : trained_)
    largest = std::max(largest, parameter->aligned_numel() - parameter->padded_numel());
  if (largest > 0) zeros_ = at::zeros({context.shard().size() * largest}, options.computed());
}

// Asks for gradients of matrices and biases in the dtype in which they are added up, whatever the number of
// ranks: only GPUs' products of bf16 leave fp32.
void ShardGroup::choose_gradient_dtypes(const std::vector<ParameterPtr>& parameters) const {
  const ShardingOptions& options = context_.options();
  if (!options.device.is_cuda() || options.compute_dtype != at::kBFloat16 ||
      options.reduce_dtype != at::kFloat)
    return;
  for (const ParameterPtr& parameter : parameters) {
    if (parameter->shape.size() != 2 && !parameter->is_linear_bias()) continue;
    parameter->gradient_dtype = options.reduce_dtype;
    if (parameter->pack) parameter->pack->gradient_dtype = options.reduce_dtype;
  }
}

// A gradient is a part of its own where, as layers leave it, a reduce-scatter gives each rank its rows, with
// nothing behind them; the others are packed, by one kernel those of one dtype. (On a CPU a message for each
// gradient would cost more than a copy.) Decided once, so that all ranks send the same whatever their
// microbatches leave.
void ShardGroup::plan_parts() {
  const ShardingOptions& options = context_.options();
  const auto dtype = [&](size_t i) {
    const Parameter& parameter = trained_[i]->parameter();
    return parameter.rounds_gradient ? options.compute_dtype
                                     : parameter.gradient_dtype.value_or(options.compute_dtype);
  };
  const auto packed = [&](size_t i) {
    return !options.device.is_cuda() || dtype(i) != options.reduce_dtype ||
           trained_[i]->blocks() % context_.shard().size() != 0 ||
           trained_[i]->aligned_numel() != trained_[i]->padded_numel();
  };
  for (size_t first = 0, last = 0; first < trained_.size(); first = last) {
    last = first + 1;
    if (packed(first))
      while (last < trained_.size() && packed(last) && dtype(last) == dtype(first)) ++last;
    sent_parts_.push_back({first, last, packed(first)});
  }
  sums_.resize(sent_parts_.size());
}

void ShardGroup::make_local_gradients(const std::set<const Parameter*>& copies) {
  const auto list_of = [&](size_t i) {
    const Parameter& parameter = owned_trained_[i]->parameter();
    if (copies.contains(&parameter)) return &local_gradients_.copies;
    if (parameter.domain == Domain::kExpert) return &local_gradients_.experts;
    const bool divided = context_.tensor() == nullptr || !parameter.cuts.empty();
    return divided ? &local_gradients_.tp_sharded : &local_gradients_.replicated;
  };
  int64_t begin = 0, end = 0;
  for (size_t i = 0; i < owned_trained_.size(); ++i) {
    end += owned_trained_[i]->aligned_numel();
    if (i + 1 < owned_trained_.size() && list_of(i + 1) == list_of(i)) continue;
    list_of(i)->push_back(grads_.narrow(0, begin, end - begin));
    begin = end;
  }
}

void ShardGroup::start_unshard() {
  if (state_ != State::kSharded) return;
  state_ = State::kGathering;
  encode_changed_weights(context_, parameters_);
  // A tied weight may be gathered already, for the other unit that uses it.
  std::vector<ShardedParameter*> missing;
  for (const ShardedParameterPtr& parameter : parameters_) {
    if (!parameter->acquire()) continue;
    parameter->set_gathered_by(this);
    missing.push_back(parameter.get());
  }
  if (missing.empty()) return;
  const TraceRange range("all-gather", name_);
  // On a GPU the all-gather runs on a stream of its own and overlaps the computation of the unit before. It
  // must not start writing before the compute stream's earlier work is done: that may still read the memory
  // that this group's weights have just been given.
  context_.gather_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.gather_stream_);
  // One operation for the group, straight from the shards into the weights; all as bytes, because the
  // parameters of a group may differ in dtype.
  std::vector<CollectivePart> parts;
  for (const ShardedParameter* parameter : missing) {
    if (parameter->all_gather_output().numel() == 0) continue;  // another one's part has it
    const at::Tensor all = parameter->all_gather_output().view(at::kByte);
    at::Tensor own = parameter->all_gather_input().view(at::kByte);
    if (own.device() != all.device()) {  // offloaded state
      const at::Tensor slot = all.narrow(0, context_.shard().rank() * own.numel(), own.numel());
      slot.copy_(own, /*non_blocking=*/true);
      own = slot;
    }
    parts.push_back({all, own});
  }
  all_gather_ = context_.shard().start_all_gather_into(std::move(parts));
  gathered_.record(context_.gather_stream_);  // finish_unshard() makes the compute stream wait for this point
}

void ShardGroup::finish_unshard() {
  start_unshard();
  if (state_ == State::kUnsharded) return;
  const TraceRange range("all-gather wait", name_);
  all_gather_.wait();  // blocks the host on a CPU only
  RankWait wait(context_.options().device.type());
  DeviceStream::current(context_.options().device).wait(gathered_);
  wait.done();
  state_ = State::kUnsharded;
  for (const ShardedParameterPtr& parameter : parameters_) {
    ShardGroup* const other = parameter->gathered_by();  // of a tied weight
    if (other != nullptr && other->state_ == State::kGathering) other->finish_unshard();
  }
}

void ShardGroup::reshard() {
  if (state_ == State::kSharded) return;
  finish_unshard();  // an all-gather in flight must not write into freed memory
  for (const ShardedParameterPtr& parameter : parameters_) parameter->release();
  state_ = State::kSharded;
}

void ShardGroup::drop_grads() {
  for (const ShardedParameterPtr& parameter : owned_trained_) parameter->drop_grad();
}

void ShardGroup::reduce(bool last_microbatch) {
  // The reduction of the unit before has overlapped this unit's backward. It is finished before the next one
  // starts, so that the buffers of one unit are the most that reductions hold.
  context_.finish_reduction();
  at::NoGradGuard no_grad;
  if (context_.shard().size() > 1) {
    start_reduce_scatter();
  } else {
    for (const ShardedParameterPtr& parameter : trained_) {
      at::Tensor& grad = parameter->parameter().weight.mutable_grad();
      if (grad.defined()) {
        parameter->add_to_grad(grad.reshape(-1));
      } else if (!parameter->holds_grad()) {
        parameter->add_to_grad(at::zeros({parameter->padded_numel()}, context_.options().reduced()));
      }
      grad.reset();
    }
  }
  if (last_microbatch && context_.replicate().size() > 1) start_replica_all_reduce();
}

void ShardGroup::accumulate() {
  if (context_.shard().size() == 1) {
    reduce(/*last_microbatch=*/false);
    return;
  }
  const TraceRange range("accumulate", name_);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < sent_parts_.size(); ++i) {
    const SentPart& part = sent_parts_[i];
    if (part.packed) {
      const bool add = sums_[i].defined();
      if (!add) sums_[i] = empty_pack(part, kSumDtype);
      pack_gradients(part, sums_[i], add);
      continue;
    }
    at::Tensor& sum = trained_[part.first]->parameter().weight.mutable_grad();
    if (sum.defined()) sum = sum.to(kSumDtype).contiguous();
  }
}

// Takes the gradients and returns the tensors to reduce-scatter, one per part, in which the rows of rank r
// follow those of rank r - 1. A layer that left no gradient has zeros.
std::vector<at::Tensor> ShardGroup::take_gradients() {
  const at::TensorOptions reduced = context_.options().reduced();
  std::vector<at::Tensor> sent;
  for (size_t i = 0; i < sent_parts_.size(); ++i) {
    const SentPart& part = sent_parts_[i];
    if (part.packed) {
      at::Tensor sum = std::exchange(sums_[i], {});
      const bool add = sum.defined();
      if (!add) sum = empty_pack(part, context_.options().reduce_dtype);
      pack_gradients(part, sum, add);
      sent.push_back(sum.to(reduced.dtype()));
      continue;
    }
    const Parameter& parameter = trained_[part.first]->parameter();
    const at::Tensor grad = std::exchange(parameter.weight.mutable_grad(), {});
    sent.push_back(grad.defined() ? grad.to(reduced.dtype()).contiguous()
                                  : at::zeros(parameter.local, reduced));
  }
  return sent;
}

// [world, sum of aligned numels] of a part's parameters, without values.
at::Tensor ShardGroup::empty_pack(const SentPart& part, at::ScalarType dtype) const {
  int64_t sum = 0;
  for (size_t i = part.first; i < part.last; ++i) sum += trained_[i]->aligned_numel();
  return at::empty({context_.shard().size(), sum}, context_.options().reduced().dtype(dtype));
}

// Writes the gradients of a part's parameters into `packed`, or adds them to it: row r is what rank r will
// hold. Frees the gradients.
void ShardGroup::pack_gradients(const SentPart& part, const at::Tensor& packed, bool add) {
  std::vector<at::Tensor> grads, aligned;
  for (size_t i = part.first; i < part.last; ++i) {
    at::Tensor grad = std::exchange(trained_[i]->parameter().weight.mutable_grad(), {});
    if (grad.defined() && trained_[i]->blocks() != grad.size(0))
      grad = grad.reshape({trained_[i]->blocks(), -1});
    grads.push_back(std::move(grad));
    aligned.push_back(grads.back());
    if (const int64_t zeros = trained_[i]->aligned_numel() - trained_[i]->padded_numel(); zeros > 0)
      aligned.push_back(zeros_.narrow(0, 0, packed.size(0) * zeros).view({packed.size(0), zeros}));
  }
  if (chunk_cat_takes(aligned, packed) && !(add && adds_in_place(grads))) {
    at::Tensor out = add ? at::empty_like(packed) : packed;
    at::_chunk_cat_out(out, aligned, /*dim=*/0, /*num_chunks=*/packed.size(0));
    if (add) packed.add_(out);
    return;
  }
  aligned.clear();
  int64_t offset = 0;
  for (size_t i = 0; i < grads.size(); ++i) {
    const ShardedParameter& parameter = *trained_[part.first + i];
    const int64_t count = parameter.padded_numel(), aligned_count = parameter.aligned_numel();
    write_rows(grads[i], packed.narrow(1, offset, count), add);
    if (!add && aligned_count > count) packed.narrow(1, offset + count, aligned_count - count).zero_();
    grads[i].reset();
    offset += aligned_count;
  }
}

void ShardGroup::start_reduce_scatter() {
  if (trained_.empty()) return;
  const TraceRange range("reduce-scatter", name_);
  std::vector<at::Tensor> sent = take_gradients();
  // Into memory of the compute stream, whose earlier work may still use it: the reduction waits for that.
  const bool into_gradients = reduces_into_gradients();
  int64_t sum = 0;
  for (const ShardedParameterPtr& parameter : trained_) {
    parameter->allocate_grad();
    if (into_gradients) parameter->start_grad();
    sum += parameter->aligned_numel();
  }
  // The reduction runs on a stream of its own, overlapping the backward of the next unit, once the compute
  // stream has made the gradients.
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  const at::Tensor local_sum = into_gradients ? grads_ : at::empty({sum}, context_.options().reduced());
  std::vector<CollectivePart> parts;
  int64_t offset = 0;
  for (const at::Tensor& tensor : sent) {
    const int64_t count = tensor.numel() / context_.shard().size();
    parts.push_back({local_sum.narrow(0, offset, count), tensor.view({-1})});
    offset += count;
  }
  Pending operation = context_.shard().start_reduce_scatter_sum(std::move(parts));
  context_.in_flight_.emplace(FsdpContext::Reduction{this, "reduce-scatter wait", std::move(operation),
                                                     std::move(sent),
                                                     into_gradients ? at::Tensor() : local_sum});
}

// Returns whether the sum of this microbatch, the first one, is what the gradients become: all of the
// group's, and as it comes.
bool ShardGroup::reduces_into_gradients() const {
  const ShardingOptions& options = context_.options();
  return owned_trained_.size() == trained_.size() && options.reduce_dtype == options.state_dtype &&
         options.device == options.state_device &&
         std::ranges::none_of(owned_trained_, [](const auto& parameter) { return parameter->holds_grad(); });
}

void ShardGroup::add_to_sharded_gradients(const at::Tensor& local_sum) {
  if (owned_trained_.size() == trained_.size() &&
      std::ranges::all_of(owned_trained_, [](const auto& parameter) { return parameter->holds_grad(); })) {
    grads_.add_(local_sum.to(grads_.device()));
    return;
  }
  int64_t offset = 0;
  for (const ShardedParameterPtr& parameter : trained_) {
    parameter->add_to_grad(local_sum.narrow(0, offset, parameter->padded_numel()));
    offset += parameter->aligned_numel();
  }
}

// Once a step: the group's own gradients are one tensor, so this is one all-reduce. A tied weight belongs to
// the first unit, whose backward comes last, so its sum is complete here.
void ShardGroup::start_replica_all_reduce() {
  if (grads_.numel() == 0) return;
  std::vector<at::Tensor> sent;
  if (context_.in_flight_) {  // this group's reduce-scatter: its result is what the replicas add up
    context_.complete_on_reduce_stream(*context_.in_flight_);
    sent = std::move(context_.in_flight_->sent);
  }
  const TraceRange range("all-reduce", name_);
  context_.reduce_stream_.wait(DeviceStream::current(context_.options().device));
  StreamScope scope(context_.reduce_stream_);
  Pending operation = context_.replicate().start_all_reduce_sum(grads_);
  context_.in_flight_.emplace(FsdpContext::Reduction{this, "all-reduce wait", std::move(operation),
                                                     std::move(sent), /*local_sum=*/{}});
}

}  // namespace hyperion::parallel
