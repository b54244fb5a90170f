#include "models/float8/choice.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/box.h"
#include "base/error.h"
#include "base/nearest.h"
#include "models/float8/cast.h"

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
  if (layer.out % multiple == 0 && layer.in % multiple == 0) return "";
  return fmt::format("{} x {}: an extent is no multiple of {}", layer.out, layer.in, multiple);
}

std::string reason_by_part(const LinearShape& layer, int64_t multiple) {
  const int64_t divided = layer.split == 0 ? layer.out : layer.in;
  if (divided % (multiple * layer.parts) == 0) return "";
  return fmt::format(
      "{} x {}: the part of one of {} tensor parallel ranks is no multiple of {} (of {}, it is {}); "
      "multiples "
      "of {} work",
      layer.out, layer.in, layer.parts, multiple, divided, chunk_of(divided, layer.parts, 0).count,
      multiple * layer.parts);
}

// One choice per layer: the first of its reasons that is not empty, and else that by its part.
template <typename Reasons, typename ByPart>
std::vector<Choice> choices_by(const std::vector<LinearShape>& layers, const Reasons& reasons,
                               const ByPart& by_part) {
  std::vector<Choice> choices;
  for (const LinearShape& layer : layers) {
    Choice choice{layer.name, ""};
    for (const std::string& reason : reasons(layer))
      if (choice.why_not.empty()) choice.why_not = reason;
    if (choice.why_not.empty()) {
      choice.why_not = by_part(layer);
      choice.by_part = !choice.why_not.empty();
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace

std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe, Gemm gemm) {
  if (recipe == Recipe::kRowwiseWithGwHp && std::ranges::find(filter, kAutoFilter) != filter.end())
    throw_config(
        "quantize.linear.float8.filter_fqns: {} has no rule for recipe_name = \"{}\"; name the layers to "
        "leave out",
        kAutoFilter, text_of(recipe));
  const bool drops_small = std::ranges::find(filter, kAutoFilter) != filter.end();
  const auto reasons = [&](const LinearShape& layer) -> std::vector<std::string> {
    const std::string small =
        drops_small && too_small(layer, recipe)
            ? fmt::format("{} x {} is too small to gain ({})", layer.out, layer.in, kAutoFilter)
            : "";
    return {reason_by_name(layer, filter), reason_by_extents(layer, kRowMultiple), small};
  };
  return choices_by(layers, reasons, [&](const LinearShape& layer) {
    return gemm == Gemm::kNative ? reason_by_part(layer, kRowMultiple) : "";
  });
}

std::vector<Choice> choose_mx_layers(const std::vector<LinearShape>& layers,
                                     const std::vector<std::string>& filter) {
  const auto reasons = [&](const LinearShape& layer) -> std::vector<std::string> {
    return {reason_by_name(layer, filter), reason_by_extents(layer, kMxMultiple)};
  };
  return choices_by(layers, reasons,
                    [](const LinearShape& layer) { return reason_by_part(layer, kMxMultiple); });
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
