#include "models/parts/latent_attention/latent_attention.h"

#include "models/kernels/kernels.h"
#include "models/layers/linear_node.h"
#include "models/layers/node_state.h"
#include "models/layers/sequence_exchange.h"
#include "models/parts/attention/gathered_attention.h"

namespace hyperion::models {
namespace {

using at::Tensor;

struct LatentHeadsFunction : Function<LatentHeadsFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& kv,
                               const Tensor& shared, const Tensor& cos, const Tensor& sin, double factor,
                               int64_t value_width) {
    context->save_for_backward({cos, sin});
    context->saved_data["factor"] = factor;
    context->saved_data["values"] = kv.size(-1) - (q.size(-1) - shared.size(-1));
    const kernels::Heads heads = kernels::table().latent_heads(q, kv, shared, cos, sin, factor, value_width);
    return {heads.q, heads.k, heads.v};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const kernels::LatentGradients gradients = kernels::table().latent_heads_backward(
        {grads[0], grads[1], grads[2]}, saved[0], saved[1], context->saved_data["factor"].toDouble(),
        context->saved_data["values"].toInt());
    return {gradients.q, gradients.kv, gradients.shared, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

LatentAttention::LatentAttention(const PartParameters& parameters, const ModelArgs& args,
                                 const ParallelDims& dims)
    : AttentionPart(parameters),
      tp_group_(dims.active_tp_group()),
      context_group_(dims.active_cp_group()),
      heads_(args.attention.n_heads / (tp_group_ != nullptr ? tp_group_->size() : 1)),
      kv_rank_(args.latent.kv_lora_rank),
      rotated_width_(args.latent.qk_rope_head_dim),
      value_width_(args.latent.v_head_dim),
      q_in_(parameters.linear(args.latent.q_lora_rank > 0 ? "attention.wq_a" : "attention.wq")),
      wkv_a_(parameters.linear("attention.wkv_a")),
      kv_norm_(parameters.norm("attention.kv_norm")),
      wkv_b_(parameters.linear("attention.wkv_b")),
      wo_(parameters.linear("attention.wo")) {
  if (args.latent.q_lora_rank == 0) return;
  q_norm_ = parameters.norm("attention.q_norm");
  wq_b_ = parameters.linear("attention.wq_b");
}

std::vector<Linear*> LatentAttention::linears() {
  std::vector<Linear*> linears = {&q_in_, &wkv_a_};
  if (wq_b_) linears.push_back(&*wq_b_);
  linears.insert(linears.end(), {&wkv_b_, &wo_});
  return linears;
}

// If neither layer is sharded, they are one node. wq of queries without a latent gathers the stream.
LatentAttention::Projections LatentAttention::project(at::TensorList x, const BlockRun& run) const {
  std::vector<Tensor> in;
  if (q_in_.tp_group() == nullptr)
    in = column_linear(x, {&q_in_, &wkv_a_}, run);
  else
    in = {column_linear(x.slice(0, 1), {&q_in_}, run)[0], column_linear(x.slice(1), {&wkv_a_}, run)[0]};
  const Tensor q = wq_b_ ? column_linear(q_norm_->forward(in[0]), {&*wq_b_}, run)[0] : in[0];
  const Tensor latent = in[1].narrow(-1, 0, kv_rank_).contiguous(),
               shared = in[1].narrow(-1, kv_rank_, rotated_width_);
  const Tensor kv = column_linear(kv_norm_.forward(latent), {&wkv_b_}, run)[0];
  if (tp_group_ == nullptr) return {q, kv, shared};
  const auto sequences = [](const Tensor& parts) { return parts.transpose(0, 1).flatten(1, 2); };
  const Tensor gathered = gather_over_ranks(shared.flatten(0, 1), tp_group_);  // in rank order, as q and kv
  return {sequences(q), sequences(kv),
          sequences(gathered.view({tp_group_->size(), shared.size(0), shared.size(1), rotated_width_}))};
}

Tensor LatentAttention::forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const {
  const auto [q, kv, shared] = project(x, run);
  const Tensor queries = q.unflatten(-1, {heads_, -1});
  const variable_list heads = LatentHeadsFunction::apply(
      queries, kv.unflatten(-1, {heads_, -1}), shared, context.cos, context.sin, context.attention_factor,
      value_width_over_ranks(queries, value_width_, context, context_group_));
  Tensor attended = attention_over_ranks(heads[0].transpose(1, 2), heads[1].transpose(1, 2),
                                         heads[2].transpose(1, 2), context, context_group_, run);
  if (attended.size(-1) != value_width_) attended = attended.narrow(-1, 0, value_width_);
  return row_linear(attended.transpose(1, 2).flatten(-2), wo_, OutputUse::kRecomputed, run);
}

}  // namespace hyperion::models
