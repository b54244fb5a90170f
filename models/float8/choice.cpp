#include "models/float8/choice.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/box.h"
#include "base/error.h"
#include "base/nearest.h"
#include "models/float8/blocks.h"

namespace hyperion::float8 {
namespace {

// torchao's measured rules: below these the casts cost more than the product gains.
bool too_small(const LinearShape& layer, Recipe recipe) {
  const int64_t k = layer.in, n = layer.out;
  if (recipe == Recipe::kTensorwise) return k <= 4096 && n <= 1024;
  return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

struct Rules {
  const std::vector<std::string>& filter;
  int64_t multiple;                        // of extents
  bool of_parts;                           // and of those of a rank's part
  std::optional<Recipe> drops_small = {};  // kAutoFilter, by the recipe's rule
};

// Why a layer is left out on any number of ranks; empty: it is not.
std::string why_not(const LinearShape& layer, const Rules& rules) {
  for (const std::string& part : rules.filter)
    if (layer.name.find(part) != std::string::npos) return fmt::format("\"{}\" is in filter_fqns", part);
  if (layer.out % rules.multiple != 0 || layer.in % rules.multiple != 0)
    return fmt::format("{} x {}: an extent is no multiple of {}", layer.out, layer.in, rules.multiple);
  if (rules.drops_small && too_small(layer, *rules.drops_small))
    return fmt::format("{} x {} is too small to gain ({})", layer.out, layer.in, kAutoFilter);
  return "";
}

std::vector<Choice> choose(const std::vector<LinearShape>& layers, const Rules& rules) {
  std::vector<Choice> choices;
  for (const LinearShape& layer : layers) {
    Choice& choice = choices.emplace_back(Choice{layer.name, why_not(layer, rules)});
    const int64_t divided = layer.split == 0 ? layer.out : layer.in, unit = rules.multiple * layer.parts;
    if (!choice.why_not.empty() || !rules.of_parts || divided % unit == 0) continue;
    choice.by_part = true;
    choice.why_not = fmt::format(
        "{} x {}: the part of one of {} tensor parallel ranks is no multiple of {} (of {}, it is {}); "
        "multiples of {} work",
        layer.out, layer.in, layer.parts, rules.multiple, divided, chunk_of(divided, layer.parts, 0).count,
        unit);
  }
  return choices;
}

}  // namespace

std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe, Gemm gemm) {
  const bool drops_small = std::ranges::find(filter, kAutoFilter) != filter.end();
  if (recipe == Recipe::kRowwiseWithGwHp && drops_small)
    throw_config(
        "quantize.linear.float8.filter_fqns: {} has no rule for recipe_name = \"{}\"; name the layers to "
        "leave out",
        kAutoFilter, text_of(recipe));
  return choose(layers, {filter, kRowMultiple, gemm == Gemm::kNative,
                         drops_small ? std::optional(recipe) : std::nullopt});
}

std::vector<Choice> choose_mx_layers(const std::vector<LinearShape>& layers,
                                     const std::vector<std::string>& filter) {
  return choose(layers, {filter, kBlock, /*of_parts=*/true});
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
