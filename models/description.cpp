#include "models/description.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "models/parts/attention/description.h"
#include "models/parts/dense/description.h"
#include "models/parts/experts/description.h"
#include "models/parts/latent_attention/description.h"

namespace hyperion::models {
namespace {

ParameterShape norm_of_stream(const ModelArgs& args, const char* name, const char* theirs) {
  return {.name = name, .dims = {args.dim}, .hugging_face = {.name = theirs}};
}

ParameterShape vocabulary_table(const ModelArgs& args, const char* name, const char* theirs, Draw draw) {
  return {.name = name,
          .dims = {args.vocab_size, args.dim},
          .draw = draw,
          .split = kSplitByRows,
          .hugging_face = {.name = theirs}};
}

BlockDescription describe_block(const ModelArgs& args, int64_t layer) {
  return {.attention = describe_attention_of(args, layer),
          .feed_forward = describe_feed_forward_of(args, layer),
          .norms = stream_norms(args)};
}

}  // namespace

ParameterShape table_shape(const ModelArgs& args) {
  return vocabulary_table(args, "tok_embeddings.weight", "model.embed_tokens.weight",
                          args.tied ? Draw::kHead : Draw::kTable);
}

ParameterShape final_norm_shape(const ModelArgs& args) {
  return norm_of_stream(args, "norm.weight", "model.norm.weight");
}

ParameterShape output_shape(const ModelArgs& args) {
  return vocabulary_table(args, "output.weight", "lm_head.weight", Draw::kHead);
}

std::array<ParameterShape, 2> stream_norms(const ModelArgs& args) {
  return {norm_of_stream(args, "attention_norm.weight", "model.layers.*.input_layernorm.weight"),
          norm_of_stream(args, "ffn_norm.weight", "model.layers.*.post_attention_layernorm.weight")};
}

PartDescription describe_attention_of(const ModelArgs& args, int64_t layer) {
  switch (attention_kind(args)) {
    case AttentionKind::kLatent:
      return describe_latent_attention(args);
    case AttentionKind::kPlain:
      break;
  }
  return describe_attention(args, layer);
}

PartDescription describe_feed_forward_of(const ModelArgs& args, int64_t layer) {
  switch (feed_forward_kind(args, layer)) {
    case FeedForwardKind::kExperts:
      return describe_experts(args);
    case FeedForwardKind::kDense:
      break;
  }
  return describe_feed_forward(args);
}

ModelDescription describe_model(const ModelArgs& args) {
  ModelDescription model{.table = table_shape(args),
                         .final_norm = final_norm_shape(args),
                         .output = output_shape(args),
                         .tied = args.tied};
  std::map<std::pair<FeedForwardKind, bool>, int>
      indices;  // among the kinds: the feed-forward and whether a window
  for (int64_t layer = 0; layer < args.n_layers; ++layer) {
    const auto [kind, is_new] =
        indices.try_emplace({feed_forward_kind(args, layer), args.attention.has_window(layer)},
                            static_cast<int>(model.kinds.size()));
    if (is_new) model.kinds.push_back(describe_block(args, layer));
    model.kind_of_layer.push_back(kind->second);
  }
  return model;
}

std::vector<std::string> unit_names(const ModelArgs& args) {
  std::vector<std::string> names = {"tok_embeddings"};
  for (int64_t layer = 0; layer < args.n_layers; ++layer) names.push_back("layers." + std::to_string(layer));
  names.emplace_back("norm,output");
  return names;
}

std::optional<NamedShape> find_shape(const ModelArgs& args, std::string_view fqn) {
  constexpr std::string_view kLayers = "layers.";
  if (!fqn.starts_with(kLayers)) {
    for (const ParameterShape& shape : {table_shape(args), final_norm_shape(args), output_shape(args)})
      if (fqn == shape.name && !(args.tied && fqn == "output.weight")) return NamedShape{shape, ""};
    return std::nullopt;
  }
  const std::string_view rest = fqn.substr(kLayers.size());
  const std::string_view number = rest.substr(0, rest.find('.'));
  int64_t layer = -1;
  std::from_chars(number.begin(), number.end(), layer);
  if (layer < 0 || layer >= args.n_layers || number != std::to_string(layer)) return std::nullopt;
  const std::string_view name = rest.substr(std::min(rest.size(), number.size() + 1));
  const BlockDescription block = describe_block(args, layer);
  std::optional<NamedShape> found;
  const auto look_at = [&](const ParameterShape& shape) {
    if (shape.name == name) found = {shape, std::string(number)};
  };
  block.for_each_parameter(look_at);
  std::ranges::for_each(block.attention.buffers, look_at);
  std::ranges::for_each(block.feed_forward.buffers, look_at);
  return found;
}

double parameter_count(const ModelDescription& model) {
  const double outside =
      model.table.numel() + model.final_norm.numel() + (model.tied ? 0 : model.output.numel());
  return outside + model.sum_over_blocks(0, model.blocks(), [](const BlockDescription& block) {
    return block.sum([](const ParameterShape& shape) { return shape.numel(); });
  });
}

ParameterCounts count_parameters(const ModelArgs& args) {
  return count_parameters(describe_model(args));
}

ParameterCounts count_parameters(const ModelDescription& model) {
  const auto numel = [](const ParameterShape& shape) {
    int64_t product = 1;
    for (const int64_t extent : shape.dims) product *= extent;
    return product;
  };
  const int64_t table = numel(model.table);
  ParameterCounts counts{.table = table, .embedding = model.tied ? 0 : table};
  counts.total = counts.active = table + numel(model.final_norm) + (model.tied ? 0 : numel(model.output));
  std::vector<ParameterCounts> by_kind;
  for (const BlockDescription& kind : model.kinds) {
    ParameterCounts& block = by_kind.emplace_back();
    kind.for_each_parameter([&](const ParameterShape& shape) {
      const int64_t all = numel(shape);
      block.total += all;
      block.active +=
          shape.domain == Domain::kExpert ? all / shape.dims[0] * kind.feed_forward.experts->top_k : all;
    });
  }
  for (const int kind : model.kind_of_layer) {
    counts.total += by_kind[static_cast<size_t>(kind)].total;
    counts.active += by_kind[static_cast<size_t>(kind)].active;
  }
  return counts;
}

}  // namespace hyperion::models
