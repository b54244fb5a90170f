#include "models/float8/choice.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/box.h"
#include "base/error.h"
#include "base/nearest.h"

namespace hyperion::float8 {
namespace {

// torchao's measured rules: below these the casts cost more than the product gains.
bool too_small(const LinearShape& layer, Recipe recipe) {
  const int64_t k = layer.in, n = layer.out;
  if (recipe == Recipe::kTensorwise) return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

std::string reason_to_leave_out(const LinearShape& layer, const std::vector<std::string>& filter,
                                Recipe recipe) {
  for (const std::string& part : filter)
    if (part != kAutoFilter && layer.name.find(part) != std::string::npos)
      return fmt::format("\"{}\" is in filter_fqns", part);
  if (layer.out % 16 != 0 || layer.in % 16 != 0)
    return fmt::format("{} x {}: an extent is no multiple of 16", layer.out, layer.in);
  if (const int64_t divided = layer.split == 0 ? layer.out : layer.in; divided % (16 * layer.parts) != 0)
    return fmt::format(
        "{} x {}: the part of one of {} tensor parallel ranks is no multiple of 16 (of {}, it is {})",
        layer.out, layer.in, layer.parts, divided, chunk_of(divided, layer.parts, 0).count);
  if (std::ranges::find(filter, kAutoFilter) != filter.end() && too_small(layer, recipe))
    return fmt::format("{} x {} is too small to gain ({})", layer.out, layer.in, kAutoFilter);
  return "";
}

}  // namespace

std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe) {
  if (recipe == Recipe::kRowwiseWithGwHp && std::ranges::find(filter, kAutoFilter) != filter.end())
    throw_config(
        "quantize.linear.float8.filter_fqns: {} has no rule for recipe_name = \"{}\"; name the layers to "
        "leave out",
        kAutoFilter, text_of(recipe));
  std::vector<Choice> choices;
  for (const LinearShape& layer : layers)
    choices.push_back({layer.name, reason_to_leave_out(layer, filter, recipe)});
  return choices;
}

std::vector<std::string> unmatched_filters(const std::vector<LinearShape>& layers,
                                           const std::vector<std::string>& filter) {
  std::set<std::string> parts = {kAutoFilter};
  for (const LinearShape& layer : layers) {
    parts.insert(layer.name);
    for (size_t dot = layer.name.find('.'); dot != std::string::npos; dot = layer.name.find('.', dot + 1))
      parts.insert(layer.name.substr(dot + 1));
  }
  const std::vector<std::string> names(parts.begin(), parts.end());
  std::vector<std::string> sentences;
  for (const std::string& part : filter) {
    const auto matches = [&](const LinearShape& layer) { return layer.name.find(part) != std::string::npos; };
    if (part == kAutoFilter || std::ranges::any_of(layers, matches)) continue;
    sentences.push_back(
        fmt::format("quantize.linear.float8.filter_fqns: \"{}\" is part of no linear layer's name{}", part,
                    did_you_mean(nearest_name(part, names))));
  }
  return sentences;
}

}  // namespace hyperion::float8
