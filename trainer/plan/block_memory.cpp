#include "trainer/plan/block_memory.h"

#include <initializer_list>
#include <utility>

#include "trainer/config/schema.h"

namespace hyperion::trainer {
namespace {

using config::RecomputeMode;
using Block = CachingAllocator::Block;
using enum BlockShape::Part;
using enum BlockShape::Tensor;

// One pass over a microbatch's tensors.
class BlockReplay {
 public:
  BlockReplay(const BlockShape& block, RecomputeMode mode, CachingAllocator& memory, BlockTensors& tensors,
              UnitGradients* gradients = nullptr)
      : b_(block), mode_(mode), memory_(memory), t_(tensors), gradients_(gradients) {}

  // Allocates all that the forward computes and frees what its mode does not keep. Of a recomputation
  // (`again`) it keeps all, and allocates only what is missing.
  Block forward(bool again) {
    again_ = again;
    get({kNormed});
    if (!t_[kProjected]) get({kGatheredNormed});
    const bool attends = !t_[kAttended];
    attention(attends);
    if (attends) pass(b_.bytes[kGatheredNormed]);
    get({kWoOutput});
    read_last({kAttended, kStatistics, kValues, kKeys, kQueries, kLatents, kExpanded, kNormedLatents});
    if (b_.latent() && (again || keeps(kQueries))) drop({kExpanded});
    if (b_.latent() && (again || !keeps(kProjected))) drop({kProjected});
    get({kResidual, kNormedResidual});
    if (b_.block.feed_forward.experts)
      experts();
    else
      dense();
    if (again) {
      drop({kWoOutput});
      return {};
    }
    Block output = memory_.allocate(b_.bytes[kInput], Content::kActivations);
    drop({kRecomputedOutput});
    read_last(
        {kRouterScores, kNormedResidual, kGatheredResidual, kResidual, kWoOutput, kNormed, kGatheredNormed});
    if (mode_ == RecomputeMode::kNone) {
      drop({kWoOutput});
      if (b_.tensor > 1) drop({kNormed});  // the gathered copies stay
      if (b_.tensor > 1 && b_.up > 0) drop({kNormedResidual});
      if (config::kFloat8.on(b_.config) || config::kMx.on(b_.config))
        cast_to_bytes({kNormed, kGatheredNormed, kNormedResidual, kGatheredResidual, kActivated});
    }
    get({kRowOrder});
    return output;
  }

  void backward(Block& gradient) {
    if (mode_ != RecomputeMode::kNone) forward(/*again=*/true);
    again_ = true;
    if (b_.block.feed_forward.experts) experts_backward();
    Block sum = dense_backward();
    drop({kRouterScores, kRowOrder});
    Block stream = working(b_.bytes[kInput]);
    free(sum);
    drop({kResidual});
    attention_backward();
    Block input_gradient = working(b_.bytes[kInput]);
    if (b_.tensor == 1) {  // else wgrad reads the gathered ones
      free_after_wgrad(stream, kWoGradient);
      if (b_.up > 0) free_after_wgrad(gradient, kW2Gradient);
    }
    free(stream, normed_gradient_, gradient);
    drop({kRecomputedOutput, kInput});
    gradient = input_gradient;
  }

 private:
  bool keeps(BlockShape::Tensor name) const { return b_.keeps(mode_, name); }

  Block working(double bytes) { return memory_.allocate(bytes, Content::kWorking); }
  template <typename... Blocks>
  void free(Blocks&... blocks) {
    (memory_.free(blocks), ...);
  }
  void pass(double bytes) {  // a tensor that lives for one operation
    Block block = working(bytes);
    free(block);
  }
  void get(BlockShape::Tensor name, double bytes) {
    if (!t_[name])
      t_[name] = memory_.allocate(bytes, !again_ && keeps(name) ? Content::kActivations : Content::kWorking);
  }
  void get(std::initializer_list<BlockShape::Tensor> names) {
    for (const auto name : names) get(name, b_.bytes[name]);
  }
  void drop(std::initializer_list<BlockShape::Tensor> names) {
    for (const auto name : names) free(t_[name]);
  }
  // Drops what forward has read for the last time and does not keep.
  void read_last(std::initializer_list<BlockShape::Tensor> names) {
    for (const auto name : names)
      if (!again_ && !keeps(name)) free(t_[name]);
  }
  // FP8 keeps the inputs of products in one byte.
  void cast_to_bytes(std::initializer_list<BlockShape::Tensor> names) {
    for (const auto name : names) {
      Block cast = memory_.allocate(static_cast<double>(t_[name].bytes) / b_.element, Content::kActivations);
      free(t_[name]);
      t_[name] = cast;
    }
  }
  void add_gradient(BlockShape::Part part) {
    if (gradients_ != nullptr && !(*gradients_)[part])
      (*gradients_)[part] = memory_.allocate(b_.gradient_bytes(part), Content::kUnsharded);
  }
  // Drops tensors that only wgrad still reads, unless wgrad is deferred.
  void drop_inputs(std::initializer_list<BlockShape::Tensor> names) {
    if (gradients_ != nullptr) drop(names);
  }
  void free_after_wgrad(Block& block, BlockShape::Tensor name) {
    if (gradients_ != nullptr)
      free(block);
    else
      t_[name] = std::exchange(block, {});
  }

  void attention(bool attends) {
    get({kProjected});
    read_last({kGatheredNormed});
    get({kLatents, kNormedLatents, kExpanded});
    if (b_.normed_heads()) pass(b_.bytes[kQueries] + b_.bytes[kKeys]);
    get({kQueries, kKeys, kValues});
    if (!b_.latent() && (again_ ? !b_.normed_heads() : !keeps(kProjected))) drop({kProjected});
    if (!attends) return;
    Block packed, received;
    if (b_.context > 1) {
      packed = working(exchanged_keys());
      received = working(exchanged_keys());
      Block sums = working((b_.ring ? 3.5 : 1) * b_.bytes[kAttended]);
      get({kAttended});
      free(sums);
    }
    pass(b_.repeated / 2);
    get({kAttended, kStatistics});
    free(packed, received);
  }
  // Keys and values that context parallel ranks exchange, of which each holds so many bytes at once.
  double exchanged_keys() const { return (b_.bytes[kKeys] + b_.bytes[kValues]) * (b_.ring ? 1 : b_.context); }

  void dense() {
    get({kGatheredResidual});
    hidden();
    if (again_) {
      get({kRecomputedOutput});
      if (b_.tensor > 1) drop({kNormedResidual});
      return;
    }
    pass(b_.bytes[kGatheredResidual]);
    get({kRecomputedOutput});
    read_last({kActivated, kW1Output, kW3Output});
  }
  void hidden() {
    if (b_.up == 0) return;
    const bool apart = mode_ == RecomputeMode::kSelective;
    get(kW1Output, apart ? b_.bytes[kActivated] : b_.up);
    if (apart) get(kW3Output, b_.up - b_.bytes[kActivated]);
    read_last({kGatheredResidual});
    get({kActivated});
  }

  void experts() {
    get({kRouterScores});
    if (!t_[kReceivedTokens]) {
      Block sent = working(b_.bytes[kReceivedTokens]);
      get({kReceivedTokens});
      free(sent);
    }
    Block sent = working(b_.shards_experts && !t_[kExpertRows] ? b_.bytes[kReturnedRows] : 0);
    if (b_.shards_experts || !t_[kExpertUp]) get({kExpertRows});
    free(sent);
    get({kGatheredResidual});
    hidden();
    Block shared = working(b_.up > 0 ? b_.bytes[kInput] : 0);
    read_last({kActivated, kW1Output, kW3Output});
    get({kExpertUp});
    if (!b_.shards_experts) drop({kExpertRows});
    get({kExpertActivated});
    const bool computes = !again_ || (!t_[kReturnedRows] && b_.repeats_of_results(mode_) > 0),
               apart_from_returned = b_.shards_experts || b_.bytes[kReturnedRows] == 0;
    Block results = working(computes && apart_from_returned ? b_.bytes[kExpertRows] : 0);
    read_last({kExpertActivated, kExpertUp, kExpertRows});
    if (computes) get({kReturnedRows});
    Block sums = working(again_ ? 0 : b_.bytes[kPackedSums]);  // back to the senders
    Block received = working(again_ ? 0 : b_.bytes[kPackedSums]);
    free(sums);
    get({kRecomputedOutput});
    free(received);
    read_last({kReturnedRows, kReceivedTokens});
    free(results, shared);
  }

  // Gathers the rows of tokens again for wgrad.
  void local_experts_backward() {
    Block rows = working(b_.bytes[kExpertRows]), gated = working(b_.bytes[kExpertActivated]);
    pass(b_.bytes[kReturnedRows]);
    drop({kReturnedRows});
    Block weighted = working(b_.weighs_hidden_rows() ? 2 * b_.bytes[kExpertActivated] : 0);
    add_gradient(kExpertsDown);
    drop_inputs({kExpertActivated});
    free(rows);
    Block up = working(b_.bytes[kExpertUp]);
    free(gated, weighted);
    drop({kExpertUp});
    rows = working(b_.bytes[kExpertRows]);
    returned_gradient_ = working(b_.tensor > 1 ? b_.bytes[kGatheredNormed] : b_.bytes[kInput]);
    free(rows);
    rows = working(b_.bytes[kExpertRows]);
    add_gradient(kExpertsUp);
    free(rows);
    free_after_wgrad(up, kExpertUp);
  }

  void experts_backward() {
    if (!b_.shards_experts) return local_experts_backward();
    Block to_nodes = working(b_.bytes[kReceivedTokens]), in_node = working(b_.bytes[kReceivedTokens]);
    free(to_nodes);
    Block sent = working(b_.bytes[kReturnedRows]);
    Block rows = working(b_.bytes[kExpertRows]);
    free(sent);
    pass(b_.bytes[kReturnedRows]);
    free(in_node);
    drop({kReturnedRows});
    Block gated = working(b_.bytes[kExpertActivated]);
    add_gradient(kExpertsDown);
    drop_inputs({kExpertActivated});
    free_after_wgrad(rows, kExpertGradient);
    Block up = working(b_.bytes[kExpertUp]);
    free(gated);
    drop({kExpertUp});
    rows_gradient_ = working(b_.bytes[kExpertRows]);
    add_gradient(kExpertsUp);
    drop_inputs({kExpertRows});
    free_after_wgrad(up, kExpertUp);
    returned_gradient_ = working(b_.bytes[kReturnedRows]);
  }

  // Returns the gradient of the normed sum.
  Block dense_backward() {
    const bool experts = b_.block.feed_forward.experts.has_value();
    if (b_.up > 0) {
      Block output = working(b_.bytes[kGatheredResidual]), gated = working(b_.bytes[kActivated]);
      add_gradient(kDown);
      free_after_wgrad(output, kW2Gradient);
      drop_inputs({kActivated});
      Block up = working(b_.up);
      free(gated);
      drop({kW1Output, kW3Output});
      Block partial = working(b_.bytes[kGatheredResidual]), sum = working(b_.bytes[kInput]);
      add_gradient(kUp);
      free(partial);
      drop_inputs({kGatheredResidual});
      if (!experts) drop_inputs({kNormedResidual});
      free_after_wgrad(up, kW1Output);
      if (!experts) return sum;
      free(sum);
    } else {
      add_gradient(kUp);
    }
    Block in_node = working(b_.bytes[kPackedSums]);
    drop({kReceivedTokens});
    Block from_nodes = working(b_.bytes[kPackedSums]);
    free(in_node);
    Block sum = working(b_.bytes[kInput]);
    free(from_nodes, returned_gradient_, rows_gradient_);
    pass(b_.bytes[kInput]);
    drop_inputs({kNormedResidual});
    return sum;
  }

  void attention_backward() {
    Block output = working(b_.bytes[kGatheredNormed]), attended = working(b_.bytes[kAttended]);
    add_gradient(kAttentionOut);
    free_after_wgrad(output, kWoGradient);
    std::array<Block, 5> exchanged{};
    if (b_.context > 1) {
      const double fp32 = sizeof(float) / b_.element, queries = b_.bytes[kQueries];
      const std::array<double, 5> bytes = {
          exchanged_keys(), exchanged_keys(), b_.ring ? 3 * queries : queries,
          (b_.ring ? 2 : 1) * fp32 * exchanged_keys(), b_.ring ? queries / 2 : 0};
      for (size_t i = 0; i < exchanged.size(); ++i) exchanged[i] = working(bytes[i]);
    }
    pass(b_.repeated);
    Block queries = working(b_.bytes[kQueries]), keys = working(b_.bytes[kKeys]),
          values = working(b_.bytes[kValues]);
    for (Block& block : exchanged) free(block);
    free(attended);
    drop({kQueries, kKeys, kValues, kStatistics});
    drop_inputs({kAttended});
    Block projected = working(b_.bytes[kProjected]), expanded = working(b_.bytes[kExpanded]);
    free(queries, keys, values);
    if (b_.normed_heads()) pass(3 * b_.bytes[kQueries]);
    Block latents = working(2 * b_.bytes[kLatents]);
    drop_inputs({kNormedLatents, kLatents});
    drop({kProjected, kExpanded});
    free(latents);
    free_after_wgrad(expanded, kExpanded);
    if (gradients_ != nullptr) get({kGatheredNormed});
    Block partial = working(b_.bytes[kGatheredNormed]);
    normed_gradient_ = working(b_.bytes[kInput]);
    add_gradient(kAttentionIn);
    free(partial);
    drop_inputs({kNormed, kGatheredNormed});
    free_after_wgrad(projected, kProjected);
  }

  const BlockShape& b_;
  const RecomputeMode mode_;
  CachingAllocator& memory_;
  BlockTensors& t_;
  UnitGradients* const gradients_;  // null: wgrad is deferred
  bool again_ = false;
  Block rows_gradient_{}, returned_gradient_{}, normed_gradient_{};
};

}  // namespace

Block replay_forward(const BlockShape& block, RecomputeMode mode, CachingAllocator& memory,
                     BlockTensors& tensors) {
  return BlockReplay(block, mode, memory, tensors).forward(/*again=*/false);
}

void replay_backward(const BlockShape& block, RecomputeMode mode, CachingAllocator& memory,
                     BlockTensors& tensors, Block& gradient, UnitGradients* gradients) {
  BlockReplay(block, mode, memory, tensors, gradients).backward(gradient);
}

void replay_weight_gradients(const BlockShape& block, CachingAllocator& memory, BlockTensors& tensors,
                             UnitGradients& gradients) {
  for (size_t part = 0; part < gradients.size(); ++part)
    if (!gradients[part])
      gradients[part] =
          memory.allocate(block.gradient_bytes(static_cast<BlockShape::Part>(part)), Content::kUnsharded);
  for (Block& tensor : tensors) memory.free(tensor);
}

}  // namespace hyperion::trainer
