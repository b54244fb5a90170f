#include "models/latent_attention.h"

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/block_linear.h"
#include "models/gathered_attention.h"
#include "models/kernels/common/dtype.h"
#include "models/layers/linear_node.h"
#include "models/layers/sequence_exchange.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Rotates neighbouring elements of x [batch, seq, heads, width], wide; back: by the opposite angles.
Tensor rotate_neighbours(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back = false) {
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  const Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const Tensor c = cos.unsqueeze(-2), s = back ? -sin.unsqueeze(-2) : sin.unsqueeze(-2);  // of each head
  return at::stack({even * c - odd * s, even * s + odd * c}, -1).flatten(-2);
}

// What attention reads of the products: queries and keys with their rotated elements behind the others, and
// values with zeros behind them as wide as those, so that every kernel takes them.
struct LatentHeadsFunction : Function<LatentHeadsFunction> {
  // q [batch, seq, heads, plain + rotated]; kv [batch, seq, heads, plain + values]; shared [batch, seq,
  // rotated]. `factor`: of the queries, in addition to attention's own scale.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& kv,
                               const Tensor& shared, const Tensor& cos, const Tensor& sin, double factor) {
    const int64_t rotated = shared.size(-1), plain = q.size(-1) - rotated, values = kv.size(-1) - plain;
    context->save_for_backward({cos, sin});
    context->saved_data["factor"] = factor;
    context->saved_data["rotated"] = rotated;
    context->saved_data["values"] = values;
    const auto wide = [](const Tensor& t) { return t.to(kernels::opmath_dtype(t)); };
    Tensor queries = at::cat(
        {wide(q.narrow(-1, 0, plain)), rotate_neighbours(wide(q.narrow(-1, plain, rotated)), cos, sin)}, -1);
    if (factor != 1) queries.mul_(factor);
    const Tensor turned = rotate_neighbours(wide(shared.unsqueeze(2)), cos, sin)
                              .to(q.scalar_type())
                              .expand({-1, -1, q.size(2), -1});
    const Tensor keys = at::cat({kv.narrow(-1, 0, plain), turned}, -1);
    return {queries.to(q.scalar_type()), keys,
            at::constant_pad_nd(kv.narrow(-1, plain, values), {0, plain + rotated - values})};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const int64_t rotated = context->saved_data["rotated"].toInt(),
                  values = context->saved_data["values"].toInt(), plain = grads[0].size(-1) - rotated;
    const double factor = context->saved_data["factor"].toDouble();
    const at::ScalarType dtype = grads[0].scalar_type();
    const auto wide = [](const Tensor& t) { return t.to(kernels::opmath_dtype(t)); };
    const auto turned_back = [&](const Tensor& t) { return rotate_neighbours(t, saved[0], saved[1], true); };
    Tensor of_q = at::cat(
        {wide(grads[0].narrow(-1, 0, plain)), turned_back(wide(grads[0].narrow(-1, plain, rotated)))}, -1);
    if (factor != 1) of_q.mul_(factor);
    const Tensor of_kv = at::cat({grads[1].narrow(-1, 0, plain), grads[2].narrow(-1, 0, values)}, -1);
    const Tensor of_shared = turned_back(wide(grads[1].narrow(-1, plain, rotated)).sum(2, /*keepdim=*/true));
    return {of_q.to(dtype), of_kv, of_shared.squeeze(2).to(dtype), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

LatentAttention::LatentAttention(const ModelArgs& args, int64_t layer, const ParallelDims& dims)
    : ranks_(dims.tensor_group()),
      context_group_(dims.context_group()),
      heads_(args.n_heads / (ranks_ != nullptr ? ranks_->size() : 1)),
      kv_rank_(args.kv_lora_rank),
      rotated_width_(args.qk_rope_head_dim),
      value_width_(args.v_head_dim),
      q_in_(args.q_lora_rank > 0
                ? undivided_linear(layer, "attention.wq_a", args.q_lora_rank, args.dim)
                : block_linear(dims, layer, "attention.wq", args.n_heads * args.head_dim, args.dim)),
      wkv_a_(undivided_linear(layer, "attention.wkv_a", args.kv_lora_rank + args.qk_rope_head_dim, args.dim)),
      kv_norm_(fmt::format("layers.{}.attention.kv_norm.weight", layer), args.kv_lora_rank, args.norm_eps),
      wkv_b_(block_linear(dims, layer, "attention.wkv_b",
                          args.n_heads * (args.qk_nope_head_dim + args.v_head_dim), args.kv_lora_rank)),
      wo_(block_linear(dims, layer, "attention.wo", args.dim, args.n_heads * args.v_head_dim,
                       residual_std(args, layer), kSplitByColumns)) {
  if (args.q_lora_rank == 0) return;
  q_norm_.emplace(fmt::format("layers.{}.attention.q_norm.weight", layer), args.q_lora_rank, args.norm_eps);
  wq_b_.emplace(block_linear(dims, layer, "attention.wq_b", args.n_heads * args.head_dim, args.q_lora_rank));
}

std::vector<ParameterPtr> LatentAttention::parameters() const {
  std::vector<ParameterPtr> all = {q_in_.weight()};
  if (wq_b_) all.insert(all.end(), {q_norm_->weight(), wq_b_->weight()});
  all.insert(all.end(), {wkv_a_.weight(), kv_norm_.weight(), wkv_b_.weight(), wo_.weight()});
  return all;
}

std::vector<Linear*> LatentAttention::linears() {
  std::vector<Linear*> all = {&q_in_, &wkv_a_};
  if (wq_b_) all.push_back(&*wq_b_);
  all.insert(all.end(), {&wkv_b_, &wo_});
  return all;
}

// Layers that both have no ranks are one node. Where queries have no latent, wq gathers the stream.
LatentAttention::Projections LatentAttention::project(at::TensorList x, const BlockRun& run) const {
  std::vector<Tensor> in;
  if (q_in_.ranks() == nullptr)
    in = column_linear(x, {&q_in_, &wkv_a_}, run);
  else
    in = {column_linear(x.slice(0, 1), {&q_in_}, run)[0], column_linear(x.slice(1), {&wkv_a_}, run)[0]};
  const Tensor q = wq_b_ ? column_linear(q_norm_->forward(in[0]), {&*wq_b_}, run)[0] : in[0];
  const Tensor latent = in[1].narrow(-1, 0, kv_rank_).contiguous(),
               shared = in[1].narrow(-1, kv_rank_, rotated_width_);
  const Tensor kv = column_linear(kv_norm_.forward(latent), {&wkv_b_}, run)[0];
  if (ranks_ == nullptr) return {q, kv, shared};
  const auto sequences = [](const Tensor& parts) { return parts.transpose(0, 1).flatten(1, 2); };
  const Tensor of_all = gather_over_ranks(shared.flatten(0, 1), ranks_);  // rank by rank, as q and kv
  return {sequences(q), sequences(kv),
          sequences(of_all.view({ranks_->size(), shared.size(0), shared.size(1), rotated_width_}))};
}

Tensor LatentAttention::forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const {
  const auto [q, kv, shared] = project(x, run);
  const variable_list heads =
      LatentHeadsFunction::apply(q.unflatten(-1, {heads_, -1}), kv.unflatten(-1, {heads_, -1}), shared,
                                 context.cos, context.sin, context.attention_factor);
  const Tensor attended = attention_over_ranks(heads[0].transpose(1, 2), heads[1].transpose(1, 2),
                                               heads[2].transpose(1, 2), context, context_group_, run)
                              .narrow(-1, 0, value_width_)
                              .transpose(1, 2);  // [batch, seq, heads, value width]
  return row_linear(attended.flatten(-2), wo_, RowResult::kNeededAgain, run);
}

}  // namespace hyperion::models
