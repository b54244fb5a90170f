#include "models/parts/description.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hyperion::models {
namespace {

std::string name_of_bias(std::string_view weight) {
  constexpr std::string_view kWeight = "weight";
  if (weight.empty()) return "";
  if (weight.ends_with(kWeight))
    return std::string(weight.substr(0, weight.size() - kWeight.size())) + "bias";
  return std::string(weight) + "_bias";
}

}  // namespace

double ParameterShape::numel() const {
  double product = 1;
  for (const int64_t extent : dims) product *= static_cast<double>(extent);
  return product;
}

double ExpertWidths::elements_per_row(double parts) const {
  const double local = static_cast<double>(hidden) / parts;
  return std::max(static_cast<double>(dim) + 2 * local, 3 * local);
}

ParameterShape bias_of(const ParameterShape& weight, Draw draw) {
  const auto inputs = static_cast<int>(weight.dims.size()) - 1;
  return {.name = name_of_bias(weight.name),
          .dims = {weight.dims.begin(), weight.dims.end() - 1},
          .draw = draw,
          .split = weight.split == inputs ? std::nullopt : weight.split,
          .domain = weight.domain,
          .trainable = weight.trainable,
          .hugging_face = {.name = name_of_bias(weight.hugging_face.name),
                           .rotated = weight.hugging_face.rotated}};
}

void add_biases(PartDescription& part, std::initializer_list<std::string_view> weights, Draw draw) {
  for (const std::string_view weight : weights)
    part.parameters.push_back(bias_of(shape_of(part, weight), draw));
}

const ParameterShape& shape_of(const PartDescription& part, std::string_view name) {
  const auto found = std::ranges::find(part.parameters, name, &ParameterShape::name);
  if (found != part.parameters.end()) return *found;
  const auto buffer = std::ranges::find(part.buffers, name, &ParameterShape::name);
  if (buffer == part.buffers.end()) throw_bug("a part of the model has no parameter \"{}\"", name);
  return *buffer;
}

Init init_of(const ParameterShape& shape, const ModelArgs& args, int64_t layer) {
  const auto within_two = [](double std) { return Init::truncated_normal(std, -2.0, 2.0); };
  switch (shape.draw) {
    case Draw::kOnes:
      return Init::ones();
    case Draw::kZeros:
      return Init::normal(0);
    case Draw::kInput:
      return within_two(0.02);
    case Draw::kResidual: {
      const int64_t depth = args.depth_init ? layer + 1 : args.n_layers;
      return within_two(0.02 / std::sqrt(2.0 * static_cast<double>(depth)));
    }
    case Draw::kTable:
      return Init::normal(1.0);
    case Draw::kHead:
      break;
  }
  const double std = 1.0 / std::sqrt(static_cast<double>(args.dim));
  return Init::truncated_normal(std, -3 * std, 3 * std);
}

}  // namespace hyperion::models
