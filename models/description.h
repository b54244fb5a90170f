// A model as plain data: the parameters outside its blocks, and each block as two parts and their norms. No
// libtorch.
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
  std::array<ParameterShape, 2> norms;  // stream_norms()

  // Calls f(const ParameterShape&) with each parameter, in the order in which they are gathered.
  template <typename F>
  void for_each_parameter(F&& f) const {
    for (const ParameterShape& shape : attention.parameters) f(shape);
    for (const ParameterShape& shape : feed_forward.parameters) f(shape);
    for (const ParameterShape& shape : norms) f(shape);
  }
  // The sum of f over the parameters.
  template <typename F>
  double sum(F&& f) const {
    double all = 0;
    for_each_parameter([&](const ParameterShape& shape) { all += f(shape); });
    return all;
  }
};

struct ModelDescription {
  ParameterShape table;       // the embedding's [vocabulary, dim]
  ParameterShape final_norm;  // before the head
  ParameterShape output;      // the head's [vocabulary, dim]; the table itself where `tied`
  bool tied = false;
  std::vector<BlockDescription> kinds{};  // each kind of block once
  std::vector<int> kind_of_layer{};       // index of `kinds`, by layer

  const BlockDescription& block(int64_t layer) const {
    return kinds[static_cast<size_t>(kind_of_layer[static_cast<size_t>(layer)])];
  }
  int64_t blocks() const { return static_cast<int64_t>(kind_of_layer.size()); }

  // The sum of f(const BlockDescription&) over blocks [first, end).
  template <typename F>
  double sum_over_blocks(int64_t first, int64_t end, F&& f) const {
    std::vector<double> of_kinds;
    for (const BlockDescription& kind : kinds) of_kinds.push_back(f(kind));
    double all = 0;
    for (int64_t layer = first; layer < end; ++layer)
      all += of_kinds[static_cast<size_t>(kind_of_layer[static_cast<size_t>(layer)])];
    return all;
  }
};

// The parameters outside the parts. A tied table takes the head's distribution, as v0.2.2's tied models do:
// the head needs its scale.
ParameterShape table_shape(const ModelArgs& args);
ParameterShape final_norm_shape(const ModelArgs& args);
ParameterShape output_shape(const ModelArgs& args);
std::array<ParameterShape, 2> stream_norms(
    const ModelArgs& args);  // before attention, before the feed-forward

// The parts of one block.
bool has_latent_attention(const ModelArgs& args);
PartDescription describe_attention_of(const ModelArgs& args, int64_t layer);
PartDescription describe_feed_forward_of(const ModelArgs& args, int64_t layer);

ModelDescription describe_model(const ModelArgs& args);

// The units that a stage of a pipeline is a range of: the embedding, each block, and the head with its norm.
std::vector<std::string> unit_names(const ModelArgs& args);

// A parameter or a buffer by its name in checkpoints, "layers.3.attention.wq.weight".
struct NamedShape {
  ParameterShape shape;
  std::string layer;  // "3"; "" outside blocks
};
// None where the model has no parameter of that name; a tied head's is the table's.
std::optional<NamedShape> find_shape(const ModelArgs& args, std::string_view fqn);

struct ParameterCounts {
  int64_t total = 0;      // every parameter once
  int64_t active = 0;     // parameters that one token is multiplied by: of the experts, top_k
  int64_t table = 0;      // the token table
  int64_t embedding = 0;  // the same where it costs no FLOPs; 0 where the head reads it too
};
ParameterCounts count_parameters(const ModelDescription& model);
ParameterCounts count_parameters(const ModelArgs& args);
// As count_parameters().total, for any dimensions.
double parameter_count(const ModelDescription& model);

}  // namespace hyperion::models
