#include "trainer/plan/block_memory.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <utility>

#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/plan/block_work.h"

namespace hyperion::trainer {

using config::RecomputeMode;
using parallel::MeshDim;
using Block = CachingAllocator::Block;

BlockMemory::BlockMemory(const models::BlockDescription& block, const models::ModelArgs& args,
                         const config::JobConfig& config, const parallel::Mesh& mesh, double tokens,
                         double repeated)
    : element_(static_cast<double>(checkpoint::size_of(config.training.mixed_precision_param))),
      context_(mesh.degree(MeshDim::kCp)),
      repeated_(repeated),
      tensor_(mesh.degree(MeshDim::kTp) > 1),
      latent_(args.latent.is_present()),
      latent_queries_(args.latent.q_lora_rank > 0),
      normed_heads_(args.attention.qk_norm && !latent_),
      apart_(config::divides_experts(config)),
      float8_(config::kFloat8.on(config) || config::kMx.on(config)) {
  const double tensor = mesh.degree(MeshDim::kTp);
  const models::AttentionWidths& widths = *block.attention.attention;
  ring_ = config::passes_keys_in_ring(config) && widths.window == 0;
  const auto bytes = [&](double width) { return tokens * width * element_; };
  const auto of_heads = [&](int64_t heads, int64_t width) {
    return bytes(static_cast<double>(heads * width) / tensor);
  };
  stream_ = bytes(static_cast<double>(args.dim) / tensor);
  gathered_ = tensor_ ? bytes(static_cast<double>(args.dim)) : 0;
  queries_ = of_heads(widths.heads, widths.head_dim);
  keys_ = of_heads(widths.kv_heads, widths.head_dim);
  values_ = of_heads(widths.kv_heads, widths.v_head_dim);
  attended_ = of_heads(widths.heads, widths.v_head_dim);
  statistics_ = tokens * static_cast<double>(widths.heads) / tensor * sizeof(float);
  projected_ = latent_ ? queries_ : queries_ + keys_ + values_;
  if (latent_) {
    latents_ = bytes(static_cast<double>(args.latent.kv_lora_rank + args.latent.q_lora_rank));
    expanded_ = of_heads(widths.heads, widths.head_dim - widths.rotated + widths.v_head_dim);
  }
  double parts = 1;
  for (const models::ParameterShape& shape : block.feed_forward.parameters)
    if (shape.domain != Domain::kExpert && shape.dims.size() == 2 && shape.split == models::kSplitByRows) {
      hidden_ = bytes(static_cast<double>(shape.dims[0]) / tensor);
      up_ += hidden_;
    }
  if (const auto& experts = block.feed_forward.experts) {
    parts = apart_ ? mesh.degree(MeshDim::kEtp) : tensor;
    const double assignments = static_cast<double>(experts->top_k) / tensor;
    rows_ = bytes(assignments * parts * static_cast<double>(args.dim));
    // Each of the ranks that share an expert sends the tokens of all of them.
    sent_ = apart_ ? rows_ : rows_ / parts;
    if (const double nodes = mesh.degree(MeshDim::kEpNodes); nodes > 1)
      received_ = bytes(parts * static_cast<double>(args.dim) / tensor * nodes_of_token(args, nodes));
    rows_hidden_ = bytes(assignments * static_cast<double>(experts->hidden));
    scores_ = tokens * static_cast<double>(experts->experts) / tensor * (element_ + sizeof(float));
    order_ = tokens * assignments * 4 * sizeof(int32_t);
  }
  const auto add = [&](const models::ParameterShape& shape, UnitGradients::Part part) {
    const double degree = shape.domain == Domain::kExpert && apart_
                              ? static_cast<double>(mesh.degree(MeshDim::kEp)) * mesh.degree(MeshDim::kEtp)
                          : shape.split ? tensor
                                        : 1;
    elements_[part] += shape.numel() / degree;
  };
  for (const models::ParameterShape& shape : block.attention.parameters)
    add(shape,
        shape.name.ends_with("wo.weight") ? UnitGradients::kAttentionOut : UnitGradients::kAttentionIn);
  for (const models::ParameterShape& shape : block.feed_forward.parameters) {
    const bool down = shape.name.find("w2") != shape.name.npos;
    if (shape.domain == Domain::kExpert)
      add(shape, down ? UnitGradients::kExpertsDown : UnitGradients::kExpertsUp);
    else
      add(shape, down ? UnitGradients::kDown : UnitGradients::kUp);
  }
}

// One pass over a microbatch's tensors.
class BlockMemory::Run {
 public:
  Run(const BlockMemory& block, CachingAllocator& memory, Tensors& tensors, RecomputeMode mode)
      : b_(block), memory_(memory), t_(tensors), mode_(mode) {}

  // Allocates all that the forward computes and frees what its mode does not keep. Of a recomputation
  // (`again`) it keeps all, and allocates only what is missing.
  Block forward(bool again) {
    again_ = again;
    get(kNormed, b_.stream_);
    if (!kept_before(kProjected)) get(kGatheredNormed, b_.gathered_);
    const bool attends = !again || !kept_before(kAttended);
    attention(attends);
    if (attends) exchange(b_.gathered_);
    if (!again || !kept_before(kWoOutput)) get(kWoOutput, b_.stream_);
    if (!again)
      drop_unkept({kAttended, kStatistics, kValues, kKeys, kQueries, kLatents, kExpanded, kNormedLatents});
    if (b_.latent_ && (again || keeps(kQueries))) drop({kExpanded});
    if (b_.latent_ && (again || !keeps(kProjected))) drop({kProjected});
    get(kResidual, b_.stream_);
    get(kNormedResidual, b_.stream_);
    if (b_.rows_ > 0)
      experts();
    else
      dense();
    if (again) {
      drop({kWoOutput});
      return {};
    }
    Block output = memory_.allocate(b_.stream_, Content::kActivations);
    drop({kRecomputedOutput});
    drop_unkept(
        {kRouterScores, kNormedResidual, kGatheredResidual, kResidual, kWoOutput, kNormed, kGatheredNormed});
    if (mode_ == RecomputeMode::kNone && b_.tensor_) {  // the gathered copies stay
      drop({kNormed});
      if (b_.hidden_ > 0) drop({kNormedResidual});
    }
    if (mode_ == RecomputeMode::kNone) drop({kWoOutput});
    if (mode_ == RecomputeMode::kNone && b_.float8_)
      halve({kNormed, kGatheredNormed, kNormedResidual, kGatheredResidual, kActivated});
    get(kRowOrder, b_.order_);
    return output;
  }

  void backward(Block& gradient, UnitGradients* gradients) {
    gradients_ = gradients;
    again_ = true;
    if (b_.rows_ > 0) experts_backward();
    Block sum_gradient = dense_backward();
    drop({kRouterScores, kRowOrder});
    Block stream = working(b_.stream_);
    memory_.free(sum_gradient);
    drop({kResidual});
    attention_backward();
    Block input_gradient = working(b_.stream_);
    if (gradients == nullptr && !b_.tensor_) {  // else wgrad reads the gathered ones
      std::swap(t_[kWoGradient], stream);
      if (b_.hidden_ > 0) std::swap(t_[kW2Gradient], gradient);
    }
    memory_.free(stream);
    memory_.free(normed_gradient_);
    memory_.free(gradient);
    drop({kRecomputedOutput, kInput});
    gradient = input_gradient;
  }

 private:
  // Whether the mode keeps the tensor from forward to backward.
  bool keeps(Name name) const {
    switch (mode_) {
      case RecomputeMode::kNone:
        return name != kProjected || b_.normed_heads_ || b_.latent_;
      case RecomputeMode::kElementwise:
        return name == kAttended || name == kStatistics || name == kWoOutput || name == kW1Output ||
               name == kExpertRows || name == kExpertUp || name == kReturnedRows || name == kReceivedTokens ||
               name == kLatents || name == kProjected || (b_.latent_ && name == kExpanded);
      case RecomputeMode::kFull:
        return b_.context_ > 1 && (name == kAttended || name == kStatistics);
      default:  // every second product; latent queries are one more before the others
        return name == kAttended || name == kStatistics || name == kW1Output || name == kProjected ||
               (name == kWoOutput && (b_.tensor_ || b_.latent_queries_)) ||
               (b_.apart_ && (name == kReceivedTokens || name == kExpertRows || name == kReturnedRows)) ||
               (b_.latent_ && name == (b_.latent_queries_ ? kLatents : kExpanded));
    }
  }
  bool kept_before(Name name) const { return static_cast<bool>(t_[name]); }

  void get(Name name, double bytes) {
    if (!t_[name])
      t_[name] = memory_.allocate(bytes, !again_ && keeps(name) ? Content::kActivations : Content::kWorking);
  }
  void drop(std::initializer_list<Name> names) {
    for (const Name name : names) memory_.free(t_[name]);
  }
  void drop_unkept(std::initializer_list<Name> names) {
    for (const Name name : names)
      if (!keeps(name)) memory_.free(t_[name]);
  }
  // FP8 keeps the inputs of products in one byte.
  void halve(std::initializer_list<Name> names) {
    for (const Name name : names) {
      if (!t_[name]) continue;
      Block copy = memory_.allocate(static_cast<double>(t_[name].bytes) / b_.element_, Content::kActivations);
      memory_.free(t_[name]);
      t_[name] = copy;
    }
  }
  Block working(double bytes) { return memory_.allocate(bytes, Content::kWorking); }
  void exchange(double bytes) {  // a tensor that lives for one operation
    Block block = working(bytes);
    memory_.free(block);
  }
  void gradient(UnitGradients::Part part, double element = sizeof(float)) {
    Block* const block = gradients_ == nullptr ? nullptr : &gradients_->parts[part];
    if (block != nullptr && !*block)
      *block = memory_.allocate(b_.elements_[part] * element, Content::kUnsharded);
  }
  // Frees what only wgrad still reads, unless it is deferred.
  void drop_inputs(std::initializer_list<Name> names) {
    if (gradients_ != nullptr) drop(names);
  }

  void attention(bool attends) {
    get(kProjected, b_.projected_);
    if (!again_) drop_unkept({kGatheredNormed});
    get(kLatents, b_.latents_);
    get(kNormedLatents, b_.latents_);
    get(kExpanded, b_.expanded_);
    if (b_.normed_heads_) exchange(b_.queries_ + b_.keys_);
    get(kQueries, b_.queries_);
    get(kKeys, b_.latent_ ? b_.queries_ : b_.keys_);
    get(kValues, b_.latent_ ? b_.attended_ : b_.values_);
    if (!b_.latent_ && (again_ ? !b_.normed_heads_ : !keeps(kProjected))) drop({kProjected});
    if (!attends) return;
    Block packed, received;
    if (b_.context_ > 1) {
      packed = working(ranks_keys() * (b_.ring_ ? 1 : b_.context_));
      received = working(static_cast<double>(packed.bytes));
      Block sums = working(b_.ring_ ? 3.5 * b_.attended_ : b_.attended_);
      get(kAttended, b_.attended_);
      memory_.free(sums);
    }
    exchange(b_.repeated_ / 2);
    get(kAttended, b_.attended_);
    get(kStatistics, b_.statistics_);
    memory_.free(packed);
    memory_.free(received);
  }
  double ranks_keys() const { return b_.latent_ ? b_.queries_ + b_.attended_ : b_.keys_ + b_.values_; }

  void dense() {
    get(kGatheredResidual, b_.gathered_);
    hidden();
    if (again_) {
      get(kRecomputedOutput, b_.stream_);
      if (b_.tensor_) drop({kNormedResidual});
      return;
    }
    exchange(b_.gathered_);
    get(kRecomputedOutput, b_.stream_);
    drop_unkept({kActivated, kW1Output, kW3Output});
  }
  void hidden() {
    if (b_.hidden_ <= 0) return;
    if (mode_ == RecomputeMode::kSelective) {
      get(kW1Output, b_.hidden_);
      if (b_.up_ > b_.hidden_) get(kW3Output, b_.up_ - b_.hidden_);
    } else {
      get(kW1Output, b_.up_);
    }
    if (!again_) drop_unkept({kGatheredResidual});
    get(kActivated, b_.hidden_);
  }

  void experts() {
    get(kRouterScores, b_.scores_);
    if (!kept_before(kReceivedTokens)) {
      Block sent = working(b_.received_);
      get(kReceivedTokens, b_.received_);
      memory_.free(sent);
    }
    const bool missing = !kept_before(kExpertRows);
    Block sent = b_.apart_ && missing ? working(b_.sent_) : Block();
    get(kExpertRows, b_.rows_);
    memory_.free(sent);
    if (b_.hidden_ > 0) get(kGatheredResidual, b_.gathered_);
    hidden();
    Block shared = b_.hidden_ > 0 ? working(b_.stream_) : Block();
    if (!again_) drop_unkept({kActivated, kW1Output, kW3Output});
    get(kExpertUp, 2 * b_.rows_hidden_);
    get(kExpertActivated, b_.rows_hidden_);
    Block results = kept_before(kReturnedRows) ? Block() : working(b_.rows_);
    if (!again_) drop_unkept({kExpertActivated, kExpertUp, kExpertRows});
    get(kReturnedRows, b_.sent_);
    Block sums = again_ ? Block() : working(b_.received_);  // back to the senders
    Block received = again_ ? Block() : working(b_.received_);
    memory_.free(sums);
    get(kRecomputedOutput, b_.stream_);
    memory_.free(received);
    if (!again_) drop_unkept({kReturnedRows, kReceivedTokens});
    memory_.free(results);
    memory_.free(shared);
  }

  void experts_backward() {
    Block to_nodes = working(b_.received_);
    Block in_node = working(b_.received_);
    memory_.free(to_nodes);
    Block sent = b_.apart_ ? working(b_.sent_) : Block();
    Block rows = working(b_.rows_);
    memory_.free(sent);
    exchange(b_.sent_);
    memory_.free(in_node);
    drop({kReturnedRows});
    Block gated = working(b_.rows_hidden_);
    gradient(UnitGradients::kExpertsDown, b_.element_);
    drop_inputs({kExpertActivated});
    if (gradients_ != nullptr) memory_.free(rows);
    Block up = working(2 * b_.rows_hidden_);
    memory_.free(gated);
    drop({kExpertUp});
    rows_gradient_ = working(b_.rows_);
    gradient(UnitGradients::kExpertsUp, b_.element_);
    drop_inputs({kExpertRows});
    if (gradients_ == nullptr) {  // wgrad reads both
      t_[kExpertUp] = up;
      t_[kExpertGradient] = rows;
    } else {
      memory_.free(up);
    }
    if (b_.apart_) returned_gradient_ = working(b_.sent_);
  }

  // Returns the gradient of the normed sum.
  Block dense_backward() {
    if (b_.hidden_ > 0) {
      Block output = working(b_.gathered_);
      Block gated = working(b_.hidden_);
      gradient(UnitGradients::kDown);
      if (gradients_ != nullptr) memory_.free(output);
      drop_inputs({kActivated});
      Block up = working(b_.up_);
      memory_.free(gated);
      drop({kW1Output, kW3Output});
      Block partial = working(b_.gathered_);
      Block sum = working(b_.stream_);
      if (gradients_ == nullptr) memory_.free(partial);
      gradient(UnitGradients::kUp);
      memory_.free(partial);
      drop_inputs({kGatheredResidual});
      if (b_.rows_ == 0) drop_inputs({kNormedResidual});
      if (gradients_ == nullptr) {
        t_[kW1Output] = up;
        t_[kW2Gradient] = output;
      } else {
        memory_.free(up);
      }
      if (b_.rows_ == 0) return sum;
      memory_.free(sum);
    } else {
      gradient(UnitGradients::kUp);
    }
    Block in_node = working(b_.received_);
    drop({kReceivedTokens});
    Block from_nodes = working(b_.received_);
    memory_.free(in_node);
    Block sum = working(b_.stream_);
    memory_.free(from_nodes);
    memory_.free(returned_gradient_);
    memory_.free(rows_gradient_);
    exchange(b_.stream_);
    drop_inputs({kNormedResidual});
    return sum;
  }

  void attention_backward() {
    Block output = working(b_.gathered_);
    Block attended = working(b_.attended_);
    gradient(UnitGradients::kAttentionOut);
    if (gradients_ != nullptr)
      memory_.free(output);
    else
      t_[kWoGradient] = output;
    std::array<Block, 5> shared{};
    if (b_.context_ > 1) {
      const double keys = ranks_keys() * (b_.ring_ ? 1 : b_.context_);
      const std::array<double, 5> bytes = {
          keys, keys, b_.ring_ ? 3 * b_.queries_ : b_.queries_,
          b_.ring_ ? 2 * sizeof(float) / b_.element_ * keys : sizeof(float) / b_.element_ * keys,
          b_.ring_ ? b_.queries_ / 2 : 0};
      for (size_t i = 0; i < shared.size(); ++i) shared[i] = working(bytes[i]);
    }
    exchange(b_.repeated_);
    Block queries = working(b_.queries_), keys = working(b_.latent_ ? b_.queries_ : b_.keys_),
          values = working(b_.latent_ ? b_.attended_ : b_.values_);
    for (Block& block : shared) memory_.free(block);
    memory_.free(attended);
    drop({kQueries, kKeys, kValues, kStatistics});
    drop_inputs({kAttended});
    Block projected = working(b_.projected_);
    Block expanded = working(b_.expanded_);
    for (Block* block : {&queries, &keys, &values}) memory_.free(*block);
    if (b_.normed_heads_) exchange(3 * b_.queries_);
    Block latents = working(2 * b_.latents_);
    if (gradients_ != nullptr) memory_.free(expanded);
    drop_inputs({kNormedLatents, kLatents});
    memory_.free(latents);
    drop({kProjected, kExpanded});
    if (gradients_ != nullptr) get(kGatheredNormed, b_.gathered_);
    Block partial = working(b_.gathered_);
    normed_gradient_ = working(b_.stream_);
    gradient(UnitGradients::kAttentionIn);
    memory_.free(partial);
    drop_inputs({kNormed, kGatheredNormed});
    if (gradients_ == nullptr) {
      t_[kProjected] = projected;
      t_[kExpanded] = expanded;
    } else {
      memory_.free(projected);
    }
  }

  const BlockMemory& b_;
  CachingAllocator& memory_;
  Tensors& t_;
  const RecomputeMode mode_;
  bool again_ = false;
  UnitGradients* gradients_ = nullptr;  // null: wgrad is deferred
  Block rows_gradient_{}, returned_gradient_{}, normed_gradient_{};
};

Block BlockMemory::forward(CachingAllocator& memory, Tensors& tensors, RecomputeMode mode) const {
  return Run(*this, memory, tensors, mode).forward(/*again=*/false);
}

void BlockMemory::backward(CachingAllocator& memory, Tensors& tensors, Block& gradient,
                           UnitGradients& gradients, RecomputeMode mode, bool divided) const {
  Run run(*this, memory, tensors, mode);
  if (mode != RecomputeMode::kNone) run.forward(/*again=*/true);
  run.backward(gradient, divided ? nullptr : &gradients);
}

void BlockMemory::weight_gradients(CachingAllocator& memory, Tensors& tensors,
                                   UnitGradients& gradients) const {
  for (size_t part = 0; part < UnitGradients::kParts; ++part)
    if (const bool experts = part >= UnitGradients::kExpertsUp; !gradients.parts[part])
      gradients.parts[part] =
          memory.allocate(elements_[part] * (experts ? element_ : sizeof(float)), Content::kUnsharded);
  for (Block& tensor : tensors) memory.free(tensor);
}

double loss_chunk_rows(const config::JobConfig& config, double tokens, double row_bytes, double tensor,
                       bool on_gpu) {
  constexpr double kTileRows = 256;
  const int64_t configured = config.training.loss_chunk_bytes, chosen = on_gpu ? 1 << 30 : 64 << 20;
  const auto limit = static_cast<double>(configured > 0 ? configured : chosen);
  const double fit = std::max(1.0, std::floor(limit / (tensor > 1 ? 2 : 1) / row_bytes));
  return std::min(tokens, fit < kTileRows || !on_gpu ? fit : std::floor(fit / kTileRows) * kTileRows);
}

config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer) {
  const auto& options = config.activation_checkpoint;
  if (options.mode != RecomputeMode::kSelective) return options.mode;
  const std::optional<int64_t> every = config::checkpointed_blocks(options);
  if (!every) return RecomputeMode::kSelective;
  return layer % *every == 0 ? RecomputeMode::kFull : RecomputeMode::kNone;
}

}  // namespace hyperion::trainer
