// ModelDescription describes a model as plain data: the parameters outside its blocks, and each block as two
// parts and their norms. This header includes no libtorch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/args/model_args.h"
#include "models/parts/description.h"

namespace hyperion::models {

struct BlockDescription {
  PartDescription attention, feed_forward;
  std::array<ParameterShape, 2> norms;  // see stream_norms()

  // Calls f(const ParameterShape&) for each parameter in all-gather order.
  template <typename F>
  void for_each_parameter(F&& f) const {
    for (const ParameterShape& shape : attention.parameters) f(shape);
    for (const ParameterShape& shape : feed_forward.parameters) f(shape);
    for (const ParameterShape& shape : norms) f(shape);
  }
  // Returns the sum of f(const ParameterShape&) over all parameters.
  template <typename F>
  double sum(F&& f) const {
    double total = 0;
    for_each_parameter([&](const ParameterShape& shape) { total += f(shape); });
    return total;
  }
};

struct ModelDescription {
  ParameterShape table;       // the embedding, [vocabulary, dim]
  ParameterShape final_norm;  // the norm before the head
  ParameterShape output;      // the head, [vocabulary, dim]; equals `table` if `tied`
  bool tied = false;
  std::vector<BlockDescription> kinds{};  // the distinct blocks
  std::vector<int> kind_of_layer{};       // index into `kinds` for each layer

  const BlockDescription& block(int64_t layer) const {
    return kinds[static_cast<size_t>(kind_of_layer[static_cast<size_t>(layer)])];
  }
  int64_t blocks() const { return static_cast<int64_t>(kind_of_layer.size()); }
  // Returns the number of layers with a window.
  int64_t windows() const {
    return static_cast<int64_t>(sum_over_blocks(0, blocks(), [](const BlockDescription& block) {
      return block.attention.attention->window > 0 ? 1.0 : 0.0;
    }));
  }

  // Returns the sum of f(const BlockDescription&) over blocks [first, end).
  template <typename F>
  double sum_over_blocks(int64_t first, int64_t end, F&& f) const {
    std::vector<double> values;  // one for each kind
    for (const BlockDescription& kind : kinds) values.push_back(f(kind));
    double total = 0;
    for (int64_t layer = first; layer < end; ++layer)
      total += values[static_cast<size_t>(kind_of_layer[static_cast<size_t>(layer)])];
    return total;
  }
};

// These four return the parameters outside the parts. A tied table takes the head's initial distribution, as
// in v0.2.2, because the head needs its scale.
ParameterShape table_shape(const ModelArgs& args);
ParameterShape final_norm_shape(const ModelArgs& args);
ParameterShape output_shape(const ModelArgs& args);
std::array<ParameterShape, 2> stream_norms(
    const ModelArgs& args);  // {before attention, before the feed-forward}

PartDescription describe_attention_of(const ModelArgs& args, int64_t layer);
PartDescription describe_feed_forward_of(const ModelArgs& args, int64_t layer);

ModelDescription describe_model(const ModelArgs& args);

// Names the units of the model in order: the embedding, each block, and the head with its norm. A pipeline
// stage is a range of units.
std::vector<std::string> unit_names(const ModelArgs& args);

struct NamedShape {
  ParameterShape shape;
  std::string layer;  // "3"; "" outside blocks
};
// Finds a parameter or buffer by its name in checkpoints, such as "layers.3.attention.wq.weight". Returns
// nullopt if the model has no such parameter; a tied head is none.
std::optional<NamedShape> find_shape(const ModelArgs& args, std::string_view fqn);

// Calls f(const std::string& fqn, const ParameterShape&) for each parameter of the model by its name in
// checkpoints, in the model's order; a tied head is none.
template <typename F>
void for_each_named_parameter(const ModelDescription& model, F&& f) {
  f(model.table.name, model.table);
  for (int64_t layer = 0; layer < model.blocks(); ++layer)
    model.block(layer).for_each_parameter(
        [&](const ParameterShape& shape) { f("layers." + std::to_string(layer) + "." + shape.name, shape); });
  f(model.final_norm.name, model.final_norm);
  if (!model.tied) f(model.output.name, model.output);
}

struct ParameterCounts {
  int64_t total = 0;      // a tied table counts once
  int64_t active = 0;     // parameters that one token uses: top_k of the experts, and all others
  int64_t table = 0;      // the token table
  int64_t embedding = 0;  // the table if only the embedding reads it (no FLOPs); 0 if it is tied
};
ParameterCounts count_parameters(const ModelDescription& model);
ParameterCounts count_parameters(const ModelArgs& args);
// Returns count_parameters().total as a double, which no dimensions overflow.
double parameter_count(const ModelDescription& model);

}  // namespace hyperion::models
