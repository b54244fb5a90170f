#include "models/flavors/registry.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "models/description.h"

namespace hyperion::models {
namespace {

constexpr double kMaxParameters = 0x1p60;  // their bytes can still be counted in 64 bits

using Flavors = std::map<std::string, ModelArgs, std::less<>>;

ModelArgs llama3(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t hidden,
                 int64_t vocab) {
  ModelArgs args;
  args.dim = dim;
  args.n_layers = layers;
  args.attention = {.n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim / heads};
  args.dense = {.hidden_dim = hidden};
  args.vocab_size = vocab;
  args.max_seq_len = 131072;
  return args;
}

// Llama 3.2's small models: a tied table, and frequencies stretched by 32.
ModelArgs small_llama3(ModelArgs args) {
  args.tied = true;
  args.rope.factor = 32;
  return args;
}

// Ties the head's weight to the embedding.
ModelArgs tied(ModelArgs args) {
  args.tied = true;
  return args;
}

ModelArgs qwen3(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t hidden, int64_t vocab) {
  ModelArgs args = llama3(dim, layers, heads, kv_heads, hidden, vocab);
  args.family = "qwen3";
  args.attention.head_dim = 128;
  args.norm_eps = 1e-6;
  args.rope.theta = 1e6;
  args.rope.scaling = false;
  args.rope.style = RopeStyle::kHalfSplit;
  args.attention.qk_norm = true;
  args.max_seq_len = 4096;
  return args;
}

// Qwen2 and Qwen2.5: biases of queries, keys and values instead of norms.
ModelArgs qwen2(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t hidden, int64_t vocab) {
  ModelArgs args = tied(qwen3(dim, layers, heads, kv_heads, hidden, vocab));
  args.family = "qwen2";
  args.attention.head_dim = dim / heads;
  args.attention.qk_norm = false;
  args.attention.qkv_bias = true;
  args.max_seq_len = 32768;
  return args;
}

struct ExpertDims {
  int64_t experts, hidden, top_k;
};

// qwen3's router: a softmax, its weights normalised, no balancing.
ModelArgs with_experts(ModelArgs args, const ExpertDims& dims) {
  args.experts = {
      .num_experts = dims.experts, .hidden_dim = dims.hidden, .top_k = dims.top_k, .route_norm = true};
  return args;
}

ModelArgs qwen3_235b() {
  ModelArgs args = with_experts(qwen3(4096, 94, 64, 4, 12288, 151936), {128, 1536, 8});
  args.rope.theta = 5e6;
  return args;
}

ModelArgs qwen3_30b() {
  ModelArgs args = with_experts(qwen3(2048, 48, 32, 4, 6144, 151936), {128, 768, 8});
  args.max_seq_len = 262144;
  return args;
}

struct DeepSeekDims {
  int64_t dim, layers, dense_layers, heads, hidden, vocab;
  ExpertDims experts;
  int64_t shared;
};

ModelArgs deepseek_v3(const DeepSeekDims& dims) {
  ModelArgs args = with_experts(
      llama3(dims.dim, dims.layers, dims.heads, dims.heads, dims.hidden, dims.vocab), dims.experts);
  args.family = "deepseek_v3";
  args.experts.n_dense_layers = dims.dense_layers;
  args.experts.num_shared_experts = dims.shared;
  args.experts.route_norm = false;
  args.experts.load_balance_coeff = 1e-3;
  args.latent = {.kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  args.attention.head_dim = args.latent.head_dim();
  args.rope = {
      .theta = 1e4, .scaling = false, .factor = 40, .original_length = 4096, .yarn = true, .mscale = 0.7};
  args.max_seq_len = 16384;
  return args;
}

// Returns the dimensions of the larger models, which mask documents upstream.
ModelArgs large_deepseek_v3(ModelArgs args, int64_t limited_groups, double route_scale) {
  args.masks_documents = true;
  if (limited_groups == 0) return args;
  args.latent.q_lora_rank = 1536;
  args.rope.mscale = 1;
  args.experts.expert_groups = 8;
  args.experts.limited_groups = limited_groups;
  args.experts.route_scale = route_scale;
  return args;
}

ModelArgs deepseek_v3_671b() {
  ModelArgs args =
      large_deepseek_v3(deepseek_v3({7168, 61, 3, 128, 18432, 129280, {256, 2048, 8}, 1}), 4, 2.5);
  args.experts.score_func = ScoreFunction::kSigmoid;
  args.experts.route_norm = true;
  return args;
}

// Llama 4: one of its experts and one shared one for each token, together as wide as a dense feed-forward.
ModelArgs llama4(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocab,
                 double multiplier, int64_t multiple_of, int64_t experts, int64_t every) {
  ModelArgs args = llama3(dim, layers, heads, kv_heads, swiglu_width(dim, multiplier, multiple_of), vocab);
  args.family = "llama4";
  const int64_t expert = swiglu_width(dim, multiplier, 1) / 2;
  args.experts = {.num_experts = experts,
                  .moe_every = every,
                  .hidden_dim = (expert + multiple_of - 1) / multiple_of * multiple_of,
                  .num_shared_experts = 1,
                  .score_func = ScoreFunction::kSigmoid,
                  .score_before_experts = true,
                  .load_balance_coeff = 1e-3};
  args.rope.factor = 16;
  args.rope.high_freq_factor = 1;
  args.max_seq_len = 1048576;
  return args;
}

ModelArgs llama4_16e() {
  ModelArgs args = llama4(5120, 48, 40, 8, 202048, 1.2, 2048, 16, 1);
  args.max_seq_len = 10485760;
  return args;
}

ModelArgs llama4_128e() {
  ModelArgs args = llama4(5120, 48, 40, 8, 202048, 1.2, 2048, 128, 2);
  args.rope.scaling = false;
  return args;
}

// Mistral AI's, of which Hugging Face's files are read: llama's with heads rotated in halves, and windows.
ModelArgs mistral() {
  ModelArgs args = llama3(128, 1, 1, 1, 1, 1);
  args.family = "mistral";
  args.rope.scaling = false;
  args.rope.style = RopeStyle::kHalfSplit;
  return args;
}

// gpt_oss: windows of 128 in every other layer, sinks, biases of attention, router and experts, and experts
// with a clamped gate (transformers' GptOssConfig; v0.2.2's flavours).
ModelArgs gpt_oss(int64_t dim, int64_t layers, int64_t experts) {
  constexpr int64_t kWidth = 2880;
  ModelArgs args = with_experts(llama3(dim, layers, 64, 8, kWidth, 201088), {experts, kWidth, 4});
  args.family = "gpt_oss";
  args.attention.head_dim = 64;
  args.attention.sinks = args.attention.qkv_bias = args.attention.output_bias = true;
  args.attention.window = 128;
  args.attention.window_full_every = 2;
  args.experts.clamped = args.experts.router_bias = true;
  args.experts.load_balance_coeff = 1e-3;
  args.rope = {.theta = 150000,
               .style = RopeStyle::kHalfSplit,
               .factor = 32,
               .original_length = 4096,
               .yarn = true,
               .truncate = false};
  return args;
}

// A flavour whose dimensions all come from a config.json; none of them is valid before.
ModelArgs from_hf(ModelArgs args) {
  args.dim = args.n_layers = args.vocab_size = args.max_seq_len = args.dense.hidden_dim = 0;
  args.attention.n_heads = args.attention.n_kv_heads = args.attention.head_dim = 0;
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
      {"qwen2",
       {{"debugmodel", qwen2(256, 6, 16, 8, 1024, 2048)},
        {kFlavorFromHf, from_hf(qwen2(128, 1, 1, 1, 1, 1))}}},
      {"qwen3",
       {{"debugmodel", tied(qwen3(256, 8, 16, 8, 3072, 2048))},
        {"0.6B", tied(qwen3(1024, 28, 16, 8, 3072, 151936))},
        {"1.7B", tied(qwen3(2048, 28, 16, 8, 6144, 151936))},
        {"4B", tied(qwen3(2560, 36, 32, 8, 9728, 151936))},
        {"8B", qwen3(4096, 36, 32, 8, 12288, 151936)},
        {"14B", qwen3(5120, 40, 40, 8, 17408, 151936)},
        {"32B", qwen3(5120, 64, 64, 8, 25600, 151936)},
        {"debugmodel_moe", with_experts(qwen3(256, 8, 16, 8, 3072, 2048), {64, 768, 8})},
        {"30B-A3B", qwen3_30b()},
        {"235B-A22B", qwen3_235b()},
        {kFlavorFromHf, from_hf(qwen3(128, 1, 1, 1, 1, 1))}}},
      {"deepseek_v3",
       {{"debugmodel", deepseek_v3({256, 6, 1, 16, 1024, 2048, {8, 256, 3}, 2})},
        {"16B", large_deepseek_v3(deepseek_v3({2048, 27, 1, 16, 10944, 102400, {64, 1408, 6}, 2}), 0, 1)},
        {"236B", large_deepseek_v3(deepseek_v3({5120, 60, 1, 128, 12288, 102400, {160, 1536, 6}, 2}), 3, 16)},
        {"671B", deepseek_v3_671b()},
        {kFlavorFromHf, from_hf(deepseek_v3({1, 1, 0, 1, 1, 1, {0, 0, 1}, 0}))}}},
      {"llama4",
       {{"debugmodel", llama4(256, 6, 16, 16, 2048, 0, 256, 8, 2)},
        {"17bx16e", llama4_16e()},
        {"17bx128e", llama4_128e()},
        {kFlavorFromHf, from_hf(llama4(128, 1, 1, 1, 1, 0, 1, 0, 1))}}},
      {"gpt_oss",
       {{"debugmodel", gpt_oss(256, 4, 8)},
        {"20b", gpt_oss(2880, 24, 32)},
        {"120b", gpt_oss(2880, 36, 128)},
        {kFlavorFromHf, from_hf(gpt_oss(128, 1, 0))}}},
      {"mistral", {{kFlavorFromHf, from_hf(mistral())}}},
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
  AttentionArgs& attention = args.attention;
  const bool head_dim_follows = attention.head_dim * attention.n_heads == args.dim;
  const bool kv_follows = attention.n_kv_heads == attention.n_heads;
  for_each_dimension([&](const char*, ModelPart, ResumeCheck, auto change, auto member) {
    if (changes.*change) member(args) = *(changes.*change);
  });
  if (kv_follows && !changes.n_kv_heads) attention.n_kv_heads = attention.n_heads;
  if (args.latent.is_present())
    attention.head_dim = args.latent.head_dim();
  else if (head_dim_follows && !changes.head_dim && attention.n_heads > 0)
    attention.head_dim = args.dim / attention.n_heads;
  if (changes.multiple_of || changes.ffn_dim_multiplier) {
    const double width = 8.0 / 3.0 * static_cast<double>(args.dim) * changes.ffn_dim_multiplier.value_or(1.0);
    if (width > kLargestDimension)
      throw_config(
          "model.args.ffn_dim_multiplier = {}: the SwiGLU would be {:.3g} wide, expected at most 2^31",
          changes.ffn_dim_multiplier.value_or(1.0), width);
    if (!changes.hidden_dim)
      args.dense.hidden_dim =
          swiglu_width(args.dim, changes.ffn_dim_multiplier.value_or(0.0), changes.multiple_of.value_or(256));
  }
}

// Returns the billions of parameters in "8B", "0.6b" or "350M", alone or as a part of "Llama-3.1-8B"; nullopt
// in other texts.
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

void check_size(const ModelArgs& args, DimensionChecks& checks) {
  const double parameters = parameter_count(describe_model(args));
  checks.refuse_if(parameters > kMaxParameters, {"n_layers", "dim", "hidden_dim", "vocab_size"},
                   fmt::format("{:.2g} parameters are more than any memory can hold; lower dim, n_layers, "
                               "hidden_dim or vocab_size",
                               parameters));
}

}  // namespace

std::vector<DimensionProblem> dimension_problems(const ModelArgs& args) {
  DimensionChecks checks;
  check(args, checks);
  if (checks.problems().empty()) check_size(args, checks);
  return checks.problems();
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

}  // namespace hyperion::models
