// One parameter of the model as this rank holds it. Its local shard: the master rows that the optimizer
// updates, their copy in the compute dtype that is all-gathered, and the reduced gradient rows. And the
// unsharded weight that layers read while it is gathered.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "base/parameter.h"
#include "base/placement.h"
#include "parallel/fsdp/gather_codec.h"

namespace hyperion::parallel {

// On a GPU, where NCCL and the fused optimizer access 16 bytes at once: of fp32 gradients.
inline constexpr int64_t kGpuShardAlignment = 4;

struct ShardingOptions {
  at::Device device = at::kCPU;  // where layers compute
  // Where master, gradient and optimizer state are kept (CPU offload: the host).
  at::Device state_device = at::kCPU;
  at::ScalarType state_dtype = at::kFloat;  // of master, gradient and optimizer state
  at::ScalarType compute_dtype = at::kBFloat16;
  at::ScalarType reduce_dtype = at::kFloat;  // gradients are summed in it
  // In elements: every shard begins at a multiple of it in buffers of several, behind zeros.
  int64_t shard_alignment = 1;
  bool pack_weights = false;  // whether the weights of a Parameter::pack lie side by side where they can
  std::shared_ptr<const GatherCodec> codec{};  // null: everything is gathered in compute_dtype

  at::TensorOptions state() const {
    const bool pinned = state_device.is_cpu() && !device.is_cpu();
    return at::TensorOptions(state_dtype).device(state_device).pinned_memory(pinned);
  }
  at::TensorOptions computed() const { return at::TensorOptions(compute_dtype).device(device); }
  at::TensorOptions reduced() const { return at::TensorOptions(reduce_dtype).device(device); }
};

// Memory of tensors that stay while it is freed and allocated again: autograd keeps the unsharded leaves (and
// views of them) from forward to backward. Allocated on the stream that is current.
class TensorMemory {
 public:
  // Without memory at first.
  TensorMemory(size_t bytes, at::Device device);

  // A tensor of this shape that begins `offset` elements behind the start.
  at::Tensor tensor(at::IntArrayRef shape, const at::TensorOptions& options, int64_t offset = 0) const;
  void allocate();  // nothing where it is allocated
  void free();

 private:
  size_t bytes_;
  c10::Storage storage_;
};

// Where the weights of one pack (Parameter::pack) are gathered side by side, each at an offset of its own.
struct PackMemory {
  // pack: its `local` is what layers of this rank read, all weights' rows. Gives it its weight.
  PackMemory(Parameter& pack, int world, const ShardingOptions& options);

  at::Tensor shards{};  // at shard degree 1, where layers read them: of all weights, 1-D in the compute dtype
  std::shared_ptr<TensorMemory> gathered{};  // else
  int64_t taken = 0;                         // elements of one rank's shards that have been given away
};

class ShardGroup;

class ShardedParameter {
 public:
  // `placement`: this rank's; its cuts behind the parameter's are over the ranks of one shard group. `pack`:
  // where the weight is gathered next to others; null: in memory of its own.
  ShardedParameter(ParameterPtr parameter, Placement placement, const ShardingOptions& options,
                   PackMemory* pack = nullptr);

  const Parameter& parameter() const { return *parameter_; }
  const Placement& placement() const { return placement_; }
  Box box() const { return box_of(parameter_->shape, placement_.cuts); }  // of the global tensor

  // What this rank has, box() of the tensor, unpadded: [local rows, ...], of one expert a stretch of its
  // rows.
  const at::Tensor& master() const { return master_; }
  // The sum of the step so far, where holds_grad(); undefined for a frozen parameter. Bound by the owning
  // ShardGroup: 1-D [slot_numel], and the memory that it is part of where that is freed between steps.
  const at::Tensor& grad() const { return grad_; }
  void bind_grad(const at::Tensor& padded, std::shared_ptr<TensorMemory> memory = nullptr) {
    padded_grad_ = padded;
    grad_ = unpadded(padded);
    grad_memory_ = std::move(memory);
  }
  bool holds_grad() const { return holds_grad_; }
  // Adds a term, 1-D [padded_numel] with zeros as padding; the first one of a step is written.
  void add_to_grad(const at::Tensor& term);
  // The caller is about to write the first term itself.
  void start_grad();
  // The next term is the first one of a step. Frees the memory where that is done between steps, and
  // allocate_grad() (or the next term) allocates it again, on the current stream.
  void drop_grad();
  void allocate_grad();
  // The rows in the compute dtype: the master itself when dtype and device are equal, or when the weight is
  // gathered encoded. Written by the optimizer.
  const at::Tensor& compute_shard() const { return compute_shard_; }
  bool has_separate_compute_shard() const { return !compute_shard_.is_same(master_); }

  // Elements of a rank's shard with its padding: as many as rank 0's, which is the largest.
  int64_t padded_numel() const { return chunk_of(blocks_, world_, 0).count * block_numel(); }
  // What a shard has some of: rows of the local tensor, or of experts stretches of a matrix.
  int64_t blocks() const { return blocks_; }
  int64_t block_numel() const {
    return blocks_ == 0 ? 0 : parameter_->rows() * parameter_->row_numel() / blocks_;
  }
  // With the zeros behind it, so that the next shard in a buffer begins at a multiple of the alignment.
  int64_t slot_numel() const { return (padded_numel() + alignment_ - 1) / alignment_ * alignment_; }
  // 1-D [padded_numel] in the compute dtype, or encoded: what this rank sends in an all-gather.
  const at::Tensor& all_gather_input() const { return all_gather_input_; }
  bool encoded() const { return parameter_->encoded.defined(); }

  // Call when master and compute shard have new contents: what was derived or encoded from the old ones
  // becomes invalid.
  void contents_changed();
  bool needs_encoding() const { return stale_ && encoded(); }
  // Of the parameter's encoded_scale, which has been written.
  void encode(const GatherCodec& codec);
  // 1-D [world * padded_numel]: what an all-gather writes. Without storage while sharded.
  const at::Tensor& all_gather_output() const { return all_gather_output_; }

  // A parameter may be used by several groups (a tied head). acquire() allocates the unsharded weight and
  // returns true when the caller has to fill it; release() frees it when no group uses it any more. At shard
  // degree 1 the weight is the compute shard itself and both do nothing.
  bool acquire();
  void release();
  // The group whose all-gather has filled the weight, or will: another one that uses it waits for it too.
  ShardGroup* gathered_by() const { return gathered_by_; }
  void set_gathered_by(ShardGroup* group) { gathered_by_ = group; }

  // What this rank has inside a padded 1-D buffer, in the shape of master().
  at::Tensor unpadded(const at::Tensor& padded) const;

 private:
  ParameterPtr parameter_;
  Placement placement_;
  int64_t rank_ = 0, world_ = 1;  // of the shard group
  int64_t blocks_;
  int64_t alignment_;
  at::Tensor master_, grad_, padded_grad_, compute_shard_, all_gather_input_, all_gather_output_;
  std::shared_ptr<TensorMemory> gathered_, grad_memory_;
  bool holds_grad_ = false;
  int users_ = 0;
  ShardGroup* gathered_by_ = nullptr;
  bool stale_ = true;    // where encoded: the all-gather input is older than the master
  bool direct_ = false;  // layers read the compute shard itself
};

using ShardedParameterPtr = std::shared_ptr<ShardedParameter>;

}  // namespace hyperion::parallel
