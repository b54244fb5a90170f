#include "models/parts/part_parameters.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::models {

ParameterPtr make_described_parameter(std::string fqn, const ParameterShape& shape, const ModelArgs& args,
                                      int64_t layer) {
  ParameterPtr parameter =
      make_parameter(std::move(fqn), shape.dims, init_of(shape, args, layer), shape.split);
  parameter->trainable = shape.trainable;
  parameter->matrices = shape.matrices;
  return parameter;
}

ParameterPtr make_block_parameter(const ParameterShape& shape, const ModelArgs& args, int64_t layer,
                                  const ParallelDims& dims) {
  const bool is_expert = shape.domain == Domain::kExpert;
  const bool replicated = is_expert && dims.active_ep_group() != nullptr && !dims.shards_experts;
  ParameterPtr parameter =
      make_described_parameter(fmt::format("layers.{}.{}", layer, shape.name), shape, args, layer);
  if (replicated) parameter->split.reset();
  if (const Exchange* ep_group = dims.active_ep_group(); is_expert && ep_group != nullptr)
    parameter->shard_experts(ep_group->size(), ep_group->rank());
  return parameter;
}

PartParameters::PartParameters(const PartDescription& part, const ModelArgs& args, int64_t layer,
                               const ParallelDims& dims)
    : prefix_(fmt::format("layers.{}.", layer)), norm_eps_(args.norm_eps), dims_(dims) {
  for (const ParameterShape& shape : part.parameters)
    parameters_.push_back(make_block_parameter(shape, args, layer, dims));
  for (const ParameterShape& shape : part.buffers)
    buffers_.push_back(make_block_parameter(shape, args, layer, dims));
}

const ParameterPtr& PartParameters::at(std::string_view name) const {
  for (const auto* some : {&parameters_, &buffers_})
    for (const ParameterPtr& parameter : *some)
      if (std::string_view(parameter->fqn).substr(prefix_.size()) == name) return parameter;
  throw_bug("{} has no parameter \"{}\"", prefix_, name);
}

Linear PartParameters::linear(std::string_view name, const ParallelDims& dims) const {
  const ParameterPtr& weight = at(fmt::format("{}.weight", name));
  ParameterPtr bias;
  const std::string name_of_bias = fmt::format("{}{}.bias", prefix_, name);
  if (const auto found = std::ranges::find(parameters_, name_of_bias, [](const auto& p) { return p->fqn; });
      found != parameters_.end())
    bias = *found;
  if (!weight->split) return Linear(weight, nullptr, nullptr, /*chunked=*/false, bias);
  return Linear(weight, nullptr, dims.active_tp_group(), dims.chunked, bias);
}

Norm PartParameters::norm(std::string_view name, int64_t consumers) const {
  return Norm(at(fmt::format("{}.weight", name)), norm_eps_, consumers);
}

}  // namespace hyperion::models
