#include "models/transformer.h"

#include <cmath>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tril.h>

#include "models/column_linear.h"
#include "models/ops.h"
#include "models/rope.h"
#include "models/row_linear.h"
#include "models/tensor_region.h"

namespace hyperion::models {
namespace {

// What Parameter::split says of a linear layer's weight [out, in].
constexpr int kByRows = 0, kByColumns = 1;

Exchange* ranks_of(const Regions& regions) {
  return regions.tensor != nullptr && regions.tensor->size() > 1 ? regions.tensor : nullptr;
}

Linear block_linear(const Regions& regions, int64_t layer, const char* name, int64_t out, int64_t in,
                    double std, int split = kByRows) {
  return Linear(make_parameter(fmt::format("layers.{}.{}.weight", layer, name), {out, in},
                               Init::truncated_normal(std, -2.0, 2.0), split),
                nullptr, ranks_of(regions), regions.in_pieces);
}

double residual_std(const ModelArgs& args, int64_t layer) {
  const int64_t depth = args.depth_init ? layer + 1 : args.n_layers;
  return 0.02 / std::sqrt(2.0 * static_cast<double>(depth));
}

}  // namespace

at::Tensor TokenEmbedding::forward(const at::Tensor& tokens) const {
  return ranks_ == nullptr ? ops::embedding(tokens, table_->weight)
                           : embedding_over_ranks(tokens, *table_, *ranks_);
}

TransformerBlock::TransformerBlock(const ModelArgs& args, int64_t layer, const Regions& regions)
    : args_(args),
      ranks_(ranks_of(regions)),
      wq_(block_linear(regions, layer, "attention.wq", args.n_heads * args.head_dim, args.dim, 0.02)),
      wk_(block_linear(regions, layer, "attention.wk", args.n_kv_heads * args.head_dim, args.dim, 0.02)),
      wv_(block_linear(regions, layer, "attention.wv", args.n_kv_heads * args.head_dim, args.dim, 0.02)),
      wo_(block_linear(regions, layer, "attention.wo", args.dim, args.n_heads * args.head_dim,
                       residual_std(args, layer), kByColumns)),
      w1_(block_linear(regions, layer, "feed_forward.w1", args.hidden_dim, args.dim, 0.02)),
      w2_(block_linear(regions, layer, "feed_forward.w2", args.dim, args.hidden_dim,
                       residual_std(args, layer), kByColumns)),
      w3_(block_linear(regions, layer, "feed_forward.w3", args.hidden_dim, args.dim,
                       residual_std(args, layer))) {
  auto norm = [&](const char* name, int64_t width) {
    return make_parameter(fmt::format("layers.{}.{}.weight", layer, name), {width}, Init::ones());
  };
  if (args.qk_norm) {
    q_norm_ = norm("attention.q_norm", args.head_dim);
    k_norm_ = norm("attention.k_norm", args.head_dim);
  }
  const auto pack = [&](const char* name, const std::vector<const Linear*>& layers) {
    int64_t rows = 0;
    for (const Linear* linear : layers) rows += linear->weight()->shape[0];
    const ParameterPtr all =
        make_parameter(fmt::format("layers.{}.{}", layer, name), {rows, args.dim}, Init::ones());
    for (const Linear* linear : layers) linear->weight()->pack = all;
  };
  pack("attention.wq, wk and wv", {&wq_, &wk_, &wv_});
  pack("feed_forward.w1 and w3", {&w1_, &w3_});
  attention_norm_ = norm("attention_norm", args.dim);
  ffn_norm_ = norm("ffn_norm", args.dim);
}

std::vector<ParameterPtr> TransformerBlock::parameters() const {
  std::vector<ParameterPtr> all = {wq_.weight(), wk_.weight(), wv_.weight(), wo_.weight()};
  if (q_norm_) all.insert(all.end(), {q_norm_, k_norm_});
  all.insert(all.end(), {w1_.weight(), w2_.weight(), w3_.weight(), attention_norm_, ffn_norm_});
  return all;
}

at::Tensor TransformerBlock::forward(const at::Tensor& x, const SequenceContext& context,
                                     BlockRun run) const {
  const ops::SumAndNorm before = ops::rms_norm_of_stream(x, attention_norm_->weight, args_.norm_eps,
                                                         branches_of_input({&wq_, &wk_, &wv_}, x));
  const ops::SumAndNorm between = ops::add_rms_norm(attention(before, context), before.sum, ffn_norm_->weight,
                                                    args_.norm_eps, branches_of_input({&w1_, &w3_}, x));
  return feed_forward(between, run);
}

at::Tensor TransformerBlock::attention(const ops::SumAndNorm& stream, const SequenceContext& context) const {
  // Between the nodes of linear layers tokens are whole sequences, which lie in `parts` parts, rank by rank.
  const int64_t parts = ranks_ == nullptr ? 1 : ranks_->size();
  const ops::RotatedHeads rotated = [&] {
    std::vector<at::Tensor> heads = column_linear(stream.normed, {&wq_, &wk_, &wv_});
    for (at::Tensor& projected : heads) projected = projected.unflatten(-1, {-1, args_.head_dim});
    if (q_norm_) {
      heads[0] = ops::rms_norm(heads[0], q_norm_->weight, args_.norm_eps);
      heads[1] = ops::rms_norm(heads[1], k_norm_->weight, args_.norm_eps);
    }
    return ops::rope_qkv(heads[0], heads[1], heads[2], context.cos, context.sin, args_.rope_style, parts);
  }();
  at::Tensor out = ops::attention(rotated.q.transpose(1, 2), rotated.k.transpose(1, 2),
                                  rotated.v.transpose(1, 2), context.documents)
                       .transpose(1, 2);  // [batch, seq, heads, head_dim]
  if (parts > 1) out = out.unflatten(1, {parts, -1}).transpose(0, 1);
  return row_linear(out.flatten(-2), wo_, std::nullopt);
}

at::Tensor TransformerBlock::feed_forward(const ops::SumAndNorm& stream, BlockRun run) const {
  const std::vector<at::Tensor> gate_up = column_linear(stream.normed, {&w1_, &w3_});
  return row_linear(ops::gated_activation(gate_up[0], gate_up[1], args_.activation), w2_, stream.sum,
                    run == BlockRun::kAgain ? RowResult::kNotNeeded : RowResult::kNeededOnce);
}

namespace {

Init head_init(const ModelArgs& args) {
  const double std = 1.0 / std::sqrt(static_cast<double>(args.dim));
  return Init::truncated_normal(std, -3 * std, 3 * std);
}

// A tied table takes the head's distribution, as v0.2.2's tied models do: the head needs its scale.
ParameterPtr make_table(const ModelArgs& args) {
  const Init init = args.tied ? head_init(args) : Init::normal(1.0);
  ParameterPtr table = make_parameter("tok_embeddings.weight", {args.vocab_size, args.dim}, init, kByRows);
  if (args.tied) table->aliases = {"output.weight"};
  return table;
}

std::vector<TransformerBlock> make_blocks(const ModelArgs& args, const Regions& regions) {
  std::vector<TransformerBlock> blocks;
  for (int64_t layer = 0; layer < args.n_layers; ++layer) blocks.emplace_back(args, layer, regions);
  return blocks;
}

}  // namespace

Transformer::Transformer(const ModelArgs& args, int64_t loss_chunk_bytes, const Regions& regions)
    : args_(args),
      table_(make_table(args)),
      norm_(make_parameter("norm.weight", {args.dim}, Init::ones())),
      output_(args.tied
                  ? table_
                  : make_parameter("output.weight", {args.vocab_size, args.dim}, head_init(args), kByRows)),
      embedding_(table_, ranks_of(regions)),
      blocks_(make_blocks(args, regions)),
      head_(args, norm_, output_, loss_chunk_bytes, {ranks_of(regions), regions.loss_parallel}) {
  units_.push_back({"tok_embeddings", {table_}});
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    units_.push_back({fmt::format("layers.{}", layer), blocks_[layer].parameters()});
  units_.push_back({"norm,output", {norm_, output_}});
  if (const Exchange* ranks = ranks_of(regions))
    for (const ParameterPtr& parameter : parameters()) parameter->divide(ranks->size(), ranks->rank());
}

std::vector<ParameterPtr> Transformer::parameters() const {
  std::vector<ParameterPtr> all;
  std::set<const Parameter*> seen;
  for (const UnitParameters& unit : units_)
    for (const ParameterPtr& parameter : unit.parameters)
      if (seen.insert(parameter.get()).second) all.push_back(parameter);
  return all;
}

std::vector<std::pair<std::string, Linear*>> Transformer::linears() {
  std::vector<std::pair<std::string, Linear*>> all;
  for (TransformerBlock& block : blocks_)
    for (Linear* linear : block.linears()) {
      const std::string& weight = linear->weight()->fqn;
      all.emplace_back(weight.substr(0, weight.rfind('.')), linear);
    }
  all.emplace_back("output", &head_.output());
  return all;
}

SequenceContext Transformer::context(int64_t seq_len, at::Device device) const {
  const at::Tensor indices = at::arange(seq_len, at::kFloat);
  const at::Tensor angles = indices.unsqueeze(1) * rope_frequencies(args_).unsqueeze(0);
  return {.cos = angles.cos().to(device), .sin = angles.sin().to(device), .documents = {}};
}

SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::Documents& documents) {
  const auto at_positions = [&](const at::Tensor& table) {
    return table.index_select(0, positions.flatten()).view({positions.size(0), positions.size(1), -1});
  };
  return {at_positions(plain.cos), at_positions(plain.sin), documents};
}

}  // namespace hyperion::models
