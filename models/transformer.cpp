#include "models/transformer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "models/args/model_args.h"
#include "models/description.h"
#include "models/kernels/common/dtype.h"
#include "models/layers/layer_metrics.h"
#include "models/layers/ops.h"
#include "models/parts/part_parameters.h"

namespace hyperion::models {
namespace {

// Records the RMS and the largest magnitude of a block's output: a stream that grows from step to step
// announces a diverging loss.
void record_activations(const at::Tensor& out, int64_t layer, LayerMetrics& metrics) {
  const auto norm = [&](double order) {
    return at::linalg_vector_norm(out.detach(), order, std::nullopt, /*keepdim=*/false,
                                  kernels::opmath_dtype(out));
  };
  metrics.record(fmt::format("activations/rms/layers.{}", layer), LayerMetrics::Reduction::kRootMeanSquare,
                 norm(2) / std::sqrt(static_cast<double>(out.numel())));
  metrics.record("activations/max", LayerMetrics::Reduction::kMax, norm(INFINITY));
}

// The norm before attention (0) or the feed-forward (1).
ParameterPtr stream_norm(const ModelArgs& args, int64_t layer, size_t index) {
  return make_block_parameter(stream_norms(args)[index], args, layer, {});
}

}  // namespace

TransformerBlock::TransformerBlock(const ModelArgs& args, int64_t layer, const ParallelDims& dims)
    : attention_(make_attention(args, layer, dims)),
      feed_forward_(make_feed_forward(args, layer, dims)),
      attention_norm_(stream_norm(args, layer, 0), args.norm_eps, attention_->consumers()),
      ffn_norm_(stream_norm(args, layer, 1), args.norm_eps, feed_forward_->consumers()),
      layer_(layer) {}

at::Tensor TransformerBlock::forward(const at::Tensor& input, const SequenceContext& context,
                                     const BlockRun& run) const {
  const auto [x, norm_of_x] = attention_norm_.norm_of_stream(input);
  // `attended` lives until the block ends. If it were freed here, tensors that outlive the block would take
  // its memory, and the GPU's pool would fragment.
  const at::Tensor attended = attention_->forward(norm_of_x, context, run);
  const ops::SumAndNorm h = ffn_norm_.add_and_norm(x, attended);  // x + attention(norm(x)), and its norm
  const at::Tensor out = feed_forward_->forward(h, run);          // h + feed_forward(norm(h))
  if (run.metrics != nullptr && run.metrics->activations) record_activations(out, layer_, *run.metrics);
  return out;
}

std::vector<ParameterPtr> TransformerBlock::parameters() const {
  std::vector<ParameterPtr> parameters = attention_->parameters();
  for (const ParameterPtr& parameter : feed_forward_->parameters()) parameters.push_back(parameter);
  parameters.insert(parameters.end(), {attention_norm_.weight(), ffn_norm_.weight()});
  return parameters;
}

std::vector<Linear*> TransformerBlock::linears() {
  std::vector<Linear*> linears = attention_->linears();
  for (Linear* linear : feed_forward_->linears()) linears.push_back(linear);
  return linears;
}

namespace {

ParameterPtr make_outer_parameter(const ParameterShape& shape, const ModelArgs& args) {
  return make_described_parameter(shape.name, shape, args, /*layer=*/0);
}

ParameterPtr make_table(const ModelArgs& args) {
  ParameterPtr table = make_outer_parameter(table_shape(args), args);
  if (args.tied) table->aliases = {output_shape(args).name};
  return table;
}

std::vector<TransformerBlock> make_blocks(const ModelArgs& args, const ParallelDims& dims) {
  std::vector<TransformerBlock> blocks;
  for (int64_t layer = 0; layer < args.n_layers; ++layer) blocks.emplace_back(args, layer, dims);
  return blocks;
}

}  // namespace

Transformer::Transformer(const ModelArgs& args, int64_t loss_chunk_bytes, const ParallelDims& dims,
                         double z_loss)
    : args_(args),
      table_(make_table(args)),
      output_(args.tied ? table_ : make_outer_parameter(output_shape(args), args)),
      norm_(make_outer_parameter(final_norm_shape(args), args), args.norm_eps),
      embedding_(table_, dims.active_tp_group()),
      blocks_(make_blocks(args, dims)),
      head_(norm_, output_, loss_chunk_bytes, dims, z_loss) {
  for (std::string& name : unit_names(args)) units_.push_back({std::move(name), {}});
  units_.front().parameters = {table_};
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    units_[layer + 1].parameters = blocks_[layer].parameters();
  units_.back().parameters = {norm_.weight(), output_};
  allocate_balances(at::kCPU);
  if (const Exchange* tp_group = dims.active_tp_group())
    for (const ParameterPtr& parameter : parameters()) parameter->shard(tp_group->size(), tp_group->rank());
}

std::vector<ParameterPtr> Transformer::parameters() const {
  std::vector<ParameterPtr> all;
  std::set<const Parameter*> seen;
  for (const UnitParameters& unit : units_)
    for (const ParameterPtr& parameter : unit.parameters)
      if (seen.insert(parameter.get()).second) all.push_back(parameter);
  return all;
}

std::vector<ExpertBalancePtr> Transformer::balances() const {
  std::vector<ExpertBalancePtr> all;
  for (const TransformerBlock& block : blocks_)
    if (ExpertBalancePtr balance = block.balance()) all.push_back(std::move(balance));
  return all;
}

void Transformer::allocate_balances(at::Device device) const {
  const auto zeros = [&](const Parameter& bias, at::ScalarType dtype) {
    return at::zeros(bias.shape, at::TensorOptions(dtype).device(device));
  };
  for (const ExpertBalancePtr& balance : balances()) {
    balance->bias->weight = zeros(*balance->bias, at::kFloat);
    balance->counts = zeros(*balance->bias, at::kLong);
  }
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

std::vector<std::pair<std::string, Experts*>> Transformer::experts() {
  std::vector<std::pair<std::string, Experts*>> all;
  for (size_t layer = 0; layer < blocks_.size(); ++layer)
    if (Experts* experts = blocks_[layer].experts())
      all.emplace_back(experts_name(static_cast<int64_t>(layer)), experts);
  return all;
}

namespace {

// YaRN keeps frequencies that make many rotations within the original length, divides those that make few by
// the factor, and blends the ones between linearly in their index.
at::Tensor yarn_frequencies(const ModelArgs& args, const at::Tensor& frequencies) {
  const auto pairs = static_cast<double>(frequencies.numel());
  const auto index_of = [&](double rotations) {  // the index of the frequency that makes them
    return pairs *
           std::log(static_cast<double>(args.rope.original_length) / (rotations * 2 * std::numbers::pi)) /
           std::log(args.rope.theta);
  };
  double first = index_of(args.rope.beta_fast), last = index_of(args.rope.beta_slow);
  if (args.rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2 * pairs - 1);
  if (first == last) last += 0.001;
  const at::Tensor stretched =
      ((at::arange(frequencies.numel(), at::kFloat) - first) / (last - first)).clamp(0, 1);
  return frequencies / args.rope.factor * stretched + frequencies * (1 - stretched);
}

}  // namespace

at::Tensor rope_frequencies(const ModelArgs& args, int64_t seq_len) {
  const int64_t width = describe_attention_of(args, 0).attention->rotated;
  const at::Tensor exponents = at::arange(0, width, 2, at::kFloat) / width;
  const at::Tensor frequencies = at::pow(args.rope.theta, exponents).reciprocal();
  if (scales_by_yarn(args.rope, seq_len)) return yarn_frequencies(args, frequencies);
  if (!args.rope.scaling) return frequencies;
  const double factor = args.rope.factor, low = args.rope.low_freq_factor, high = args.rope.high_freq_factor;
  const double length = static_cast<double>(args.rope.original_length);
  const at::Tensor wavelengths = 2 * std::numbers::pi / frequencies;
  const at::Tensor stretched = at::where(wavelengths > length / low, frequencies / factor, frequencies);
  if (low == high) return stretched;
  const at::Tensor blend = (length / wavelengths - low) / (high - low);
  const at::Tensor blended = (1 - blend) * stretched / factor + blend * stretched;
  const at::Tensor between = (wavelengths >= length / high).logical_and(wavelengths <= length / low);
  return at::where(between, blended, stretched);
}

SequenceContext Transformer::context(int64_t seq_len, at::Device device) const {
  const at::Tensor indices = at::arange(seq_len, at::kFloat);
  const at::Tensor angles = indices.unsqueeze(1) * rope_frequencies(args_, seq_len).unsqueeze(0);
  at::Tensor cos = angles.cos(), sin = angles.sin();
  double attention_factor = 1;
  if (scales_by_yarn(args_.rope, seq_len)) {
    const double factor = yarn_factor(args_.rope);
    if (args_.latent.is_present()) {
      attention_factor = factor * factor;
    } else {
      cos = cos * factor;
      sin = sin * factor;
    }
  }
  return {.cos = cos.to(device), .sin = sin.to(device), .mask = {}, .attention_factor = attention_factor};
}

SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::AttentionMask& mask) {
  const auto at_positions = [&](const at::Tensor& table) {
    return table.index_select(0, positions.flatten()).view({positions.size(0), positions.size(1), -1});
  };
  return {at_positions(plain.cos), at_positions(plain.sin), mask, plain.attention_factor, {}};
}

at::Tensor columns_of_parts(const at::Tensor& t, const std::vector<SequenceRange>& parts, int64_t dim) {
  std::vector<at::Tensor> all;
  for (const SequenceRange& part : parts) all.push_back(t.narrow(dim, part.first, part.size()));
  return at::cat(all, dim);
}

SequenceContext context_of_parts(const SequenceContext& plain, const std::vector<SequenceRange>& parts,
                                 const at::Tensor& positions) {
  const at::Device device = plain.cos.device();
  SequenceContext context;
  if (positions.defined()) {
    const at::Tensor local = columns_of_parts(positions, parts);
    context = inside_documents(
        plain, device.is_cpu() ? local : local.pin_memory().to(device, /*non_blocking=*/true), {});
  } else {
    context = plain;
    context.cos = columns_of_parts(plain.cos, parts, 0);
    context.sin = columns_of_parts(plain.sin, parts, 0);
  }
  for (const SequenceRange& part : parts)
    context.parts.push_back({part, positions.defined()
                                       ? kernels::document_mask(positions, part.first, part.end, device)
                                       : kernels::AttentionMask()});
  return context;
}

}  // namespace hyperion::models
