#include "models/float8/choice.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/box.h"
#include "base/error.h"
#include "base/nearest.h"

namespace hyperion::float8 {
namespace {

constexpr int64_t kMxMultiple = 32;  // a block

// torchao's measured rules: below these the casts cost more than the product gains.
bool too_small(const LinearShape& layer, Recipe recipe) {
  const int64_t k = layer.in, n = layer.out;
  if (recipe == Recipe::kTensorwise) return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

std::string reason_by_name(const LinearShape& layer, const std::vector<std::string>& filter) {
  for (const std::string& part : filter)
    if (layer.name.find(part) != std::string::npos) return fmt::format("\"{}\" is in filter_fqns", part);
  return "";
}

std::string reason_by_extents(const LinearShape& layer, int64_t multiple) {
  if (layer.out % multiple != 0 || layer.in % multiple != 0)
    return fmt::format("{} x {}: an extent is no multiple of {}", layer.out, layer.in, multiple);
  if (const int64_t divided = layer.split == 0 ? layer.out : layer.in;
      divided % (multiple * layer.parts) != 0)
    return fmt::format(
        "{} x {}: the part of one of {} tensor parallel ranks is no multiple of {} (of {}, it is {})",
        layer.out, layer.in, layer.parts, multiple, divided, chunk_of(divided, layer.parts, 0).count);
  return "";
}

// One choice per layer: the first of its reasons that is not empty.
template <typename Reasons>
std::vector<Choice> choices_by(const std::vector<LinearShape>& layers, const Reasons& reasons) {
  std::vector<Choice> choices;
  for (const LinearShape& layer : layers) {
    choices.push_back({layer.name, ""});
    for (const std::string& reason : reasons(layer))
      if (choices.back().why_not.empty()) choices.back().why_not = reason;
  }
  return choices;
}

}  // namespace

std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe) {
  if (recipe == Recipe::kRowwiseWithGwHp && std::ranges::find(filter, kAutoFilter) != filter.end())
    throw_config(
        "quantize.linear.float8.filter_fqns: {} has no rule for recipe_name = \"{}\"; name the layers to "
        "leave out",
        kAutoFilter, text_of(recipe));
  const bool drops_small = std::ranges::find(filter, kAutoFilter) != filter.end();
  return choices_by(layers, [&](const LinearShape& layer) -> std::vector<std::string> {
    const std::string small =
        drops_small && too_small(layer, recipe)
            ? fmt::format("{} x {} is too small to gain ({})", layer.out, layer.in, kAutoFilter)
            : "";
    return {reason_by_name(layer, filter), reason_by_extents(layer, 16), small};
  });
}

std::vector<Choice> choose_mx_layers(const std::vector<LinearShape>& layers,
                                     const std::vector<std::string>& filter) {
  return choices_by(layers, [&](const LinearShape& layer) -> std::vector<std::string> {
    return {reason_by_name(layer, filter), reason_by_extents(layer, kMxMultiple)};
  });
}

std::vector<std::string> unmatched_filters(const std::vector<LinearShape>& layers,
                                           const std::vector<std::string>& filter, const std::string& table) {
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
    sentences.push_back(fmt::format("{}.filter_fqns: \"{}\" is part of no linear layer's name{}", table, part,
                                    did_you_mean(nearest_name(part, names))));
  }
  return sentences;
}

}  // namespace hyperion::float8
