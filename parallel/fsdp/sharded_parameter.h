// A ShardedParameter is one parameter of the model on this rank. It holds the local shard (the master rows
// that the optimizer updates, their copy in the compute dtype that is all-gathered, and the reduced gradient
// rows) and the unsharded weight that layers read while it is gathered.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "base/parameter.h"
#include "base/placement.h"
#include "parallel/fsdp/gather_codec.h"

namespace hyperion::parallel {

// NCCL and the fused optimizer access 16 bytes at once on a GPU: 4 elements of fp32 gradients.
inline constexpr int64_t kGpuShardAlignment = 4;

struct ShardingOptions {
  at::Device device = at::kCPU;  // where layers compute
  // The device of master, gradient and optimizer state (CPU offload: the host).
  at::Device state_device = at::kCPU;
  at::ScalarType state_dtype = at::kFloat;  // the dtype of master, gradient and optimizer state
  at::ScalarType compute_dtype = at::kBFloat16;
  at::ScalarType reduce_dtype = at::kFloat;  // the dtype in which gradients are summed
  // Every shard begins at a multiple of this number in buffers of several shards; zeros pad the gaps.
  int64_t shard_alignment = 1;
  bool pack_weights = false;  // places the weights of a Parameter::pack side by side, where possible
  std::shared_ptr<const GatherCodec> codec{};  // null: all parameters are gathered in compute_dtype

  at::TensorOptions state() const {
    const bool pinned = state_device.is_cpu() && !device.is_cpu();
    return at::TensorOptions(state_dtype).device(state_device).pinned_memory(pinned);
  }
  at::TensorOptions computed() const { return at::TensorOptions(compute_dtype).device(device); }
  at::TensorOptions reduced() const { return at::TensorOptions(reduce_dtype).device(device); }
};

// TensorMemory can be freed and allocated again while its tensors stay: autograd keeps the unsharded leaves
// (and views of them) from forward to backward. It is allocated on the current stream.
class TensorMemory {
 public:
  // The memory is not allocated yet.
  TensorMemory(size_t bytes, at::Device device);

  // Returns a tensor of this shape that begins `offset` elements behind the start.
  at::Tensor tensor(at::IntArrayRef shape, const at::TensorOptions& options, int64_t offset = 0) const;
  void allocate();  // does nothing if the memory is allocated
  void free();

 private:
  size_t bytes_;
  c10::Storage storage_;
};

// The weights of one pack (Parameter::pack) are gathered side by side into a PackMemory. The matrices of a
// pack of stacks lie side by side for each expert, in the shards too: one all-gather moves whole experts.
struct PackMemory {
  // Sets pack.weight. pack.local is the shape that layers of this rank read: the rows of all its weights.
  PackMemory(Parameter& pack, int world, const ShardingOptions& options);

  at::Tensor shards{};  // 1-D in the compute dtype, for stacks or shard degree 1: this rank's weights
  std::shared_ptr<TensorMemory> gathered{};  // of a shard degree above 1: the memory of the gathered weights
  std::vector<int64_t> expert{};             // the shape of one expert's matrices in a pack of stacks
  int64_t taken = 0;                         // elements of one rank's shards that have a place
};

class ShardGroup;

class ShardedParameter {
 public:
  // `placement` is this rank's: the parameter's own cuts, then the cuts over the ranks of one shard group.
  // The weight is gathered into `pack`, or into memory of its own if `pack` is null.
  ShardedParameter(ParameterPtr parameter, Placement placement, const ShardingOptions& options,
                   PackMemory* pack = nullptr);

  const Parameter& parameter() const { return *parameter_; }
  const Placement& placement() const { return placement_; }
  Box box() const { return box_of(parameter_->shape, placement_.cuts); }  // the part of the global tensor

  // Returns this rank's shard, box() of the tensor, without padding: [local rows, ...]. A shard of experts
  // may have a stretch of one expert's rows.
  const at::Tensor& master() const { return master_; }
  // Returns the gradient's sum in this step if holds_grad(); it is undefined for a frozen parameter. The
  // owning ShardGroup binds it: 1-D [aligned_numel], with its memory if that is freed between steps.
  const at::Tensor& grad() const { return grad_; }
  void bind_grad(const at::Tensor& padded, std::shared_ptr<TensorMemory> memory = nullptr) {
    padded_grad_ = padded;
    grad_ = unpadded(padded);
    grad_memory_ = std::move(memory);
  }
  bool holds_grad() const { return holds_grad_; }
  // Adds a term, 1-D [padded_numel] with zeros as padding. The first term of a step is written.
  void add_to_grad(const at::Tensor& term);
  // The caller is about to write the first term itself.
  void start_grad();
  // Makes the next term the first one of a step. If grad memory is freed between steps, drop_grad() frees it
  // and allocate_grad() (or the next term) allocates it again on the current stream.
  void drop_grad();
  void allocate_grad();
  // Returns the rows in the compute dtype, which the optimizer writes: the master itself if dtype and device
  // are equal, or if the weight is gathered encoded. It has gaps between experts in a pack of stacks.
  const at::Tensor& compute_shard() const { return compute_shard_; }
  bool has_separate_compute_shard() const { return !compute_shard_.is_same(master_); }

  // Returns the elements of rank 0's shard, which is the largest. Every rank's shard is padded to it.
  int64_t padded_numel() const { return chunk_of(blocks_, world_, 0).count * block_numel(); }
  // Returns the number of blocks that the shards divide: rows of the local tensor, or stretches of an
  // expert's matrix.
  int64_t blocks() const { return blocks_; }
  int64_t block_numel() const {
    return blocks_ == 0 ? 0 : parameter_->rows() * parameter_->row_numel() / blocks_;
  }
  // Returns the elements of the local tensor (Parameter::local), flat, that a rank of the shard group holds.
  Range elements_of_rank(int rank) const {
    const Range blocks = chunk_of(blocks_, world_, rank);
    return {blocks.begin * block_numel(), blocks.count * block_numel()};
  }
  // Returns padded_numel() rounded up to the alignment: zeros pad the gap to the next shard in a buffer.
  int64_t aligned_numel() const { return (padded_numel() + alignment_ - 1) / alignment_ * alignment_; }
  // Returns the tensor that this rank sends in an all-gather: 1-D [padded_numel] in the compute dtype, or
  // encoded. The first of a pack of stacks sends the shards of all; the others are empty.
  const at::Tensor& all_gather_input() const { return all_gather_input_; }
  bool encoded() const { return parameter_->encoded.defined(); }

  // Invalidates all that was derived or encoded. Call it when master and compute shard have new contents.
  void contents_changed();
  bool needs_encoding() const { return stale_ && encoded(); }
  // Encodes with the parameter's encoded.scale, which has been written.
  void encode(const GatherCodec& codec);
  // Returns the tensor that an all-gather writes: 1-D, world times the input, without storage while sharded.
  const at::Tensor& all_gather_output() const { return all_gather_output_; }

  // Several groups may use a parameter (a tied head). acquire() allocates the unsharded weight and returns
  // true if the caller has to fill it. release() frees it when no group uses it any more. At shard degree 1
  // the weight is the compute shard itself and both do nothing.
  bool acquire();
  void release();
  // Returns the group whose all-gather fills the weight. Another group that uses the weight waits for it.
  ShardGroup* gathered_by() const { return gathered_by_; }
  void set_gathered_by(ShardGroup* group) { gathered_by_ = group; }

  // Returns this rank's elements of a padded 1-D buffer, in the shape of master().
  at::Tensor unpadded(const at::Tensor& padded) const;

 private:
  void lie_alone_or_in_rows(const ShardingOptions& options, PackMemory* pack);
  void lie_in_stack(const ShardingOptions& options, PackMemory& pack);
  void drop_derived() const;

  ParameterPtr parameter_;
  Placement placement_;
  int64_t rank_ = 0, world_ = 1;  // this rank in the shard group, and its size
  int64_t blocks_;
  int64_t alignment_;
  at::Tensor master_, grad_, padded_grad_, compute_shard_, all_gather_input_, all_gather_output_;
  std::shared_ptr<TensorMemory> gathered_, grad_memory_;
  bool holds_grad_ = false;
  int users_ = 0;
  ShardGroup* gathered_by_ = nullptr;
  bool stale_ = true;    // the encoded all-gather input is older than the master
  bool direct_ = false;  // layers read the compute shard itself
};

using ShardedParameterPtr = std::shared_ptr<ShardedParameter>;

}  // namespace hyperion::parallel
