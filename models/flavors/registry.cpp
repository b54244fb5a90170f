#include "models/flavors/registry.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"

namespace hyperion::models {
namespace {

constexpr double kLargestSize = 2147483648.0;  // of one dimension
constexpr double kMostParameters = 0x1p60;     // their bytes can still be counted in 64 bits

using Flavors = std::map<std::string, ModelArgs, std::less<>>;

ModelArgs llama3(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t hidden,
                 int64_t vocab) {
  ModelArgs args;
  args.dim = dim;
  args.n_layers = layers;
  args.n_heads = heads;
  args.n_kv_heads = kv_heads;
  args.head_dim = dim / heads;
  args.hidden_dim = hidden;
  args.vocab_size = vocab;
  args.max_seq_len = 131072;
  return args;
}

// Llama 3.2's small models: a tied table, and frequencies stretched by 32.
ModelArgs small_llama3(ModelArgs args) {
  args.tied = true;
  args.rope_factor = 32;
  return args;
}

ModelArgs qwen3(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t hidden, int64_t vocab,
                bool tied) {
  ModelArgs args = llama3(dim, layers, heads, kv_heads, hidden, vocab);
  args.family = "qwen3";
  args.head_dim = 128;
  args.norm_eps = 1e-6;
  args.rope_theta = 1e6;
  args.rope_scaling = false;
  args.rope_style = RopeStyle::kHalfSplit;
  args.qk_norm = true;
  args.tied = tied;
  args.max_seq_len = 4096;
  return args;
}

// A flavour whose dimensions all come from a config.json; none of them is valid before.
ModelArgs from_hf(ModelArgs args) {
  args.dim = args.n_layers = args.n_heads = args.n_kv_heads = args.head_dim = 0;
  args.hidden_dim = args.vocab_size = args.max_seq_len = 0;
  return args;
}

const std::map<std::string, Flavors, std::less<>>& registry() {
  static const std::map<std::string, Flavors, std::less<>> flavors = {
      {"llama3",
       {{"debugmodel", llama3(256, 6, 16, 16, swiglu_width(256, 0, 256), 2048)},
        // 1B and 3B: the sizes of Llama 3.2 (Meta's model cards and config.json files: hidden_size,
        // num_hidden_layers, heads, kv heads, intermediate_size, rope_scaling; tied embeddings).
        {"1B", small_llama3(llama3(2048, 16, 32, 8, 8192, 128256))},
        {"3B", small_llama3(llama3(3072, 28, 24, 8, 8192, 128256))},
        {"8B", llama3(4096, 32, 32, 8, swiglu_width(4096, 1.3, 1024), 128256)},
        {"70B", llama3(8192, 80, 64, 8, swiglu_width(8192, 1.3, 4096), 128256)},
        {"405B", llama3(16384, 126, 128, 8, swiglu_width(16384, 1.2, 4096), 128256)},
        {kFlavorFromHf, from_hf(ModelArgs())}}},
      {"qwen3",
       {{"debugmodel", qwen3(256, 8, 16, 8, 3072, 2048, true)},
        {"0.6B", qwen3(1024, 28, 16, 8, 3072, 151936, true)},
        {"1.7B", qwen3(2048, 28, 16, 8, 6144, 151936, true)},
        {"4B", qwen3(2560, 36, 32, 8, 9728, 151936, true)},
        {"8B", qwen3(4096, 36, 32, 8, 12288, 151936, false)},
        {"14B", qwen3(5120, 40, 40, 8, 17408, 151936, false)},
        {"32B", qwen3(5120, 64, 64, 8, 25600, 151936, false)},
        {kFlavorFromHf, from_hf(qwen3(128, 1, 1, 1, 1, 1, false))}}},
  };
  return flavors;
}

const Flavors& flavors_of(std::string_view name) {
  auto found = registry().find(name);
  if (found == registry().end())
    throw_config("model.name = \"{}\": no such model; known: {}", name, fmt::join(model_names(), ", "));
  return found->second;
}

void apply_overrides(const ModelOverrides& changes, ModelArgs& args) {
  const bool head_dim_follows = args.head_dim * args.n_heads == args.dim;
  const bool kv_follows = args.n_kv_heads == args.n_heads;
#define OVERRIDE(type, key, ...) \
  if (changes.key) args.key = *changes.key;
#define WIDTH_RULE(...)
#include "models/flavors/overrides.def"
  if (kv_follows && !changes.n_kv_heads) args.n_kv_heads = args.n_heads;
  if (head_dim_follows && !changes.head_dim && args.n_heads > 0) args.head_dim = args.dim / args.n_heads;
  if (changes.multiple_of || changes.ffn_dim_multiplier) {
    const double width = 8.0 / 3.0 * static_cast<double>(args.dim) * changes.ffn_dim_multiplier.value_or(1.0);
    if (width > kLargestSize)
      throw_config(
          "model.args.ffn_dim_multiplier = {}: the SwiGLU would be {:.3g} wide, expected at most 2^31",
          changes.ffn_dim_multiplier.value_or(1.0), width);
    if (!changes.hidden_dim)
      args.hidden_dim =
          swiglu_width(args.dim, changes.ffn_dim_multiplier.value_or(0.0), changes.multiple_of.value_or(256));
  }
}

// Billions of parameters in "8B", "0.6b" or "350M", alone or as a part of "Llama-3.1-8B"; nothing in other
// texts.
std::optional<double> billions(std::string_view flavor) {
  while (!flavor.empty()) {
    const std::string_view part = flavor.substr(0, flavor.find_first_of("-_ "));
    flavor.remove_prefix(std::min(flavor.size(), part.size() + 1));
    double number = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    const std::string_view unit = part.substr(static_cast<size_t>(end - part.data()));
    if (error != std::errc() || !(number > 0) || number > 1e6) continue;
    if (unit == "B" || unit == "b") return number;
    if (unit == "M" || unit == "m") return number / 1000;
  }
  return std::nullopt;
}

}  // namespace

std::vector<DimensionProblem> dimension_problems(const ModelArgs& args) {
  std::vector<DimensionProblem> problems;
  const auto positive = [&](std::vector<std::string> keys, int64_t value) {
    if (value >= 1 && value <= static_cast<int64_t>(kLargestSize)) return;
    std::string text = fmt::format("{} is {}, expected a value from 1 to 2^31", keys.front(), value);
    problems.push_back({std::move(keys), std::move(text)});
  };
  positive({"dim"}, args.dim);
  positive({"n_layers"}, args.n_layers);
  positive({"n_heads"}, args.n_heads);
  positive({"n_kv_heads"}, args.n_kv_heads);
  positive({"head_dim", "n_heads", "dim"}, args.head_dim);
  positive({"hidden_dim", "multiple_of", "ffn_dim_multiplier"}, args.hidden_dim);
  positive({"vocab_size"}, args.vocab_size);
  positive({"max_seq_len"}, args.max_seq_len);
  const double dim = static_cast<double>(args.dim), layers = static_cast<double>(args.n_layers);
  const double widths =
      2 * static_cast<double>(args.n_heads + args.n_kv_heads) * static_cast<double>(args.head_dim) +
      3 * static_cast<double>(args.hidden_dim) + 2;
  const double parameters = dim * (layers * widths + 2 * static_cast<double>(args.vocab_size) + 1);
  if (parameters > kMostParameters)
    problems.push_back(
        {{"n_layers", "dim", "hidden_dim", "vocab_size"},
         fmt::format("{:.2g} parameters are more than any memory can hold; lower dim, n_layers, "
                     "hidden_dim or vocab_size",
                     parameters)});
  if (args.n_kv_heads > 0 && args.n_heads % args.n_kv_heads != 0)
    problems.push_back({{"n_heads", "n_kv_heads"},
                        fmt::format("n_heads is {}, expected a multiple of n_kv_heads = {}", args.n_heads,
                                    args.n_kv_heads)});
  if (args.head_dim % 2 != 0)
    problems.push_back(
        {{"head_dim", "n_heads", "dim"},
         fmt::format("head_dim is {}{}, expected an even number (RoPE rotates pairs)", args.head_dim,
                     args.n_heads > 0 && args.head_dim == args.dim / args.n_heads
                         ? fmt::format(" (dim {} / {} heads)", args.dim, args.n_heads)
                         : "")});
  const auto rope = [&](bool good, const char* key, double seen, const char* expected) {
    if (!good) problems.push_back({{key}, fmt::format("{} is {}, expected {}", key, seen, expected)});
  };
  rope(args.rope_factor >= 1, "rope_factor", args.rope_factor, "at least 1");
  rope(args.rope_low_freq_factor > 0, "rope_low_freq_factor", args.rope_low_freq_factor, "a number above 0");
  rope(args.rope_high_freq_factor > args.rope_low_freq_factor, "rope_high_freq_factor",
       args.rope_high_freq_factor, "more than rope_low_freq_factor");
  rope(args.rope_original_length >= 1, "rope_original_length", static_cast<double>(args.rope_original_length),
       "at least 1");
  rope(args.norm_eps > 0, "norm_eps", args.norm_eps, "a number above 0");
  rope(args.rope_theta > 1, "rope_theta", args.rope_theta, "a number above 1");
  return problems;
}

ModelArgs model_args(std::string_view name, std::string_view flavor, const ModelOverrides& overrides,
                     bool any_dimensions) {
  const Flavors& flavors = flavors_of(name);
  auto found = flavors.find(flavor);
  if (found == flavors.end())
    throw_config("model.flavor = \"{}\": {} has no such flavour; known: {}{}", flavor, name,
                 fmt::join(model_flavors(name), ", "), did_you_mean(nearest_flavor(name, flavor)));
  ModelArgs args = found->second;
  apply_overrides(overrides, args);
  if (any_dimensions) return args;
  std::vector<std::string> wrong;
  for (const DimensionProblem& problem : dimension_problems(args)) wrong.push_back(problem.text);
  if (!wrong.empty()) throw_config("model {} {}: {}", name, flavor, fmt::join(wrong, "; "));
  return args;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, flavors] : registry()) names.push_back(name);
  return names;
}

std::vector<std::string> model_flavors(std::string_view name) {
  std::vector<std::pair<int64_t, std::string>> sizes;
  for (const auto& [flavor, args] : flavors_of(name))
    sizes.emplace_back(args.dim == 0 ? std::numeric_limits<int64_t>::max() : count_parameters(args).total,
                       flavor);
  std::ranges::sort(sizes);
  std::vector<std::string> names;
  for (auto& [size, flavor] : sizes) names.push_back(std::move(flavor));
  return names;
}

std::string nearest_flavor(std::string_view name, std::string_view flavor) {
  const std::vector<std::string> known = model_flavors(name);
  const std::optional<double> wanted = billions(flavor);
  if (!wanted) return nearest_name(flavor, known);
  std::string best;
  double smallest = std::numeric_limits<double>::infinity();
  for (const std::string& candidate : known) {
    const std::optional<double> size = billions(candidate);
    const double distance = size ? std::abs(std::log(*wanted / *size)) : smallest;
    if (distance >= smallest) continue;
    smallest = distance;
    best = candidate;
  }
  return best;
}

ParameterCounts count_parameters(const ModelArgs& args) {
  const int64_t q_width = args.n_heads * args.head_dim;
  const int64_t kv_width = args.n_kv_heads * args.head_dim;
  const int64_t attention =
      2 * args.dim * q_width + 2 * args.dim * kv_width + (args.qk_norm ? 2 * args.head_dim : 0);
  const int64_t block = attention + 3 * args.dim * args.hidden_dim + 2 * args.dim;
  const int64_t table = args.vocab_size * args.dim;
  return {args.n_layers * block + args.dim + (args.tied ? 1 : 2) * table, args.tied ? 0 : table};
}

}  // namespace hyperion::models
