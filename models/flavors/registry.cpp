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

struct ExpertDims {
  int64_t experts, hidden, top_k;
};

// qwen3's router: a softmax, its weights normalised, no balancing.
ModelArgs with_experts(ModelArgs args, const ExpertDims& dims) {
  args.num_experts = dims.experts;
  args.moe_hidden_dim = dims.hidden;
  args.top_k = dims.top_k;
  args.route_norm = true;
  return args;
}

ModelArgs qwen3_235b() {
  ModelArgs args = with_experts(qwen3(4096, 94, 64, 4, 12288, 151936, false), {128, 1536, 8});
  args.rope_theta = 5e6;
  return args;
}

ModelArgs qwen3_30b() {
  ModelArgs args = with_experts(qwen3(2048, 48, 32, 4, 6144, 151936, false), {128, 768, 8});
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
  args.n_dense_layers = dims.dense_layers;
  args.num_shared_experts = dims.shared;
  args.route_norm = false;
  args.load_balance_coeff = 1e-3;
  args.kv_lora_rank = 512;
  args.qk_nope_head_dim = 128;
  args.qk_rope_head_dim = 64;
  args.v_head_dim = 128;
  args.head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim;
  args.rope_theta = 1e4;
  args.rope_scaling = false;
  args.rope_yarn = true;
  args.rope_factor = 40;
  args.rope_original_length = 4096;
  args.rope_mscale = 0.7;
  args.max_seq_len = 16384;
  return args;
}

// Those of the larger models, which mask documents upstream.
ModelArgs large_deepseek_v3(ModelArgs args, int64_t limited_groups, double route_scale) {
  args.masks_documents = true;
  if (limited_groups == 0) return args;
  args.q_lora_rank = 1536;
  args.rope_mscale = 1;
  args.expert_groups = 8;
  args.limited_groups = limited_groups;
  args.route_scale = route_scale;
  return args;
}

ModelArgs deepseek_v3_671b() {
  ModelArgs args =
      large_deepseek_v3(deepseek_v3({7168, 61, 3, 128, 18432, 129280, {256, 2048, 8}, 1}), 4, 2.5);
  args.score_func = ScoreFunction::kSigmoid;
  args.route_norm = true;
  return args;
}

// Llama 4: one of its experts and one shared one for each token, together as wide as a dense feed-forward.
ModelArgs llama4(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads, int64_t vocab,
                 double multiplier, int64_t multiple_of, int64_t experts, int64_t every) {
  ModelArgs args = llama3(dim, layers, heads, kv_heads, swiglu_width(dim, multiplier, multiple_of), vocab);
  args.family = "llama4";
  const int64_t expert = swiglu_width(dim, multiplier, 1) / 2;
  args.num_experts = experts;
  args.moe_hidden_dim = (expert + multiple_of - 1) / multiple_of * multiple_of;
  args.num_shared_experts = 1;
  args.moe_every = every;
  args.score_func = ScoreFunction::kSigmoid;
  args.score_before_experts = true;
  args.load_balance_coeff = 1e-3;
  args.rope_factor = 16;
  args.rope_high_freq_factor = 1;
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
  args.rope_scaling = false;
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
        {"debugmodel_moe", with_experts(qwen3(256, 8, 16, 8, 3072, 2048, false), {64, 768, 8})},
        {"30B-A3B", qwen3_30b()},
        {"235B-A22B", qwen3_235b()},
        {kFlavorFromHf, from_hf(qwen3(128, 1, 1, 1, 1, 1, false))}}},
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
  for_each_dimension([&](const char*, ModelPart, ResumeCheck, auto change, auto member) {
    if (changes.*change) args.*member = *(changes.*change);
  });
  if (kv_follows && !changes.n_kv_heads) args.n_kv_heads = args.n_heads;
  if (args.kv_lora_rank > 0)
    args.head_dim = args.qk_nope_head_dim + args.qk_rope_head_dim;
  else if (head_dim_follows && !changes.head_dim && args.n_heads > 0)
    args.head_dim = args.dim / args.n_heads;
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

void check_size(const ModelArgs& args, std::vector<DimensionProblem>& problems) {
  const double parameters = parameter_count(describe_model(args));
  if (parameters > kMostParameters)
    problems.push_back(
        {{"n_layers", "dim", "hidden_dim", "vocab_size"},
         fmt::format("{:.2g} parameters are more than any memory can hold; lower dim, n_layers, "
                     "hidden_dim or vocab_size",
                     parameters)});
}

void check_experts(const ModelArgs& args, std::vector<DimensionProblem>& problems) {
  if (args.num_experts == 0) return;
  const auto refuse = [&](std::vector<std::string> keys, std::string text) {
    problems.push_back({std::move(keys), std::move(text)});
  };
  const int64_t experts = args.num_experts, groups = args.expert_groups;
  if (args.moe_hidden_dim < 1)
    refuse({"moe_hidden_dim"},
           fmt::format("moe_hidden_dim is {}, expected at least 1 with experts", args.moe_hidden_dim));
  if (args.top_k > experts)
    refuse({"top_k", "num_experts"},
           fmt::format("top_k is {}, expected at most num_experts = {}", args.top_k, experts));
  if (groups == 0) return;
  if (experts % groups != 0 || experts / groups < 2)
    return refuse({"expert_groups", "num_experts"},
                  fmt::format("expert_groups is {}, expected a divisor of num_experts = {} that leaves each "
                              "group two experts or more",
                              groups, experts));
  if (args.limited_groups < 1 || args.limited_groups > groups)
    return refuse({"limited_groups", "expert_groups"},
                  fmt::format("limited_groups is {}, expected a value from 1 to expert_groups = {}",
                              args.limited_groups, groups));
  if (args.limited_groups * (experts / groups) < args.top_k)
    refuse({"limited_groups", "top_k"},
           fmt::format("{} groups of {} experts are fewer experts than top_k = {}: raise limited_groups",
                       args.limited_groups, experts / groups, args.top_k));
}

}  // namespace

bool has_part(const ModelArgs& args, ModelPart part) {
  switch (part) {
    case ModelPart::kRescaled:
      return args.rope_scaling || args.rope_yarn;
    case ModelPart::kScaling:
      return args.rope_scaling;
    case ModelPart::kYarn:
      return args.rope_yarn;
    case ModelPart::kLatent:
      return has_latent_attention(args);
    case ModelPart::kExperts:
    case ModelPart::kBalance:
      return args.num_experts > 0;
    case ModelPart::kModel:
    case ModelPart::kTraining:
    case ModelPart::kYarnChoice:
      break;
  }
  return true;
}

std::vector<DimensionProblem> dimension_problems(const ModelArgs& args) {
  std::vector<DimensionProblem> problems;
  const auto in_range = [&](std::vector<std::string> keys, int64_t value, int64_t least, int64_t most,
                            std::string_view text_of_most) {
    if (value >= least && value <= most) return;
    std::string text =
        fmt::format("{} is {}, expected a value from {} to {}", keys.front(), value, least, text_of_most);
    problems.push_back({std::move(keys), std::move(text)});
  };
  const auto positive = [&](std::vector<std::string> keys, int64_t value) {
    in_range(std::move(keys), value, 1, static_cast<int64_t>(kLargestSize), "2^31");
  };
  positive({"dim"}, args.dim);
  in_range({"n_layers"}, args.n_layers, 1, kMostLayers, std::to_string(kMostLayers));
  in_range({"num_experts"}, args.num_experts, 0, kMostExperts, std::to_string(kMostExperts));
  in_range({"num_shared_experts"}, args.num_shared_experts, 0, kMostExperts, std::to_string(kMostExperts));
  positive({"n_heads"}, args.n_heads);
  positive({"n_kv_heads"}, args.n_kv_heads);
  positive({"head_dim", "n_heads", "dim"}, args.head_dim);
  positive({"hidden_dim", "multiple_of", "ffn_dim_multiplier"}, args.hidden_dim);
  positive({"vocab_size"}, args.vocab_size);
  positive({"max_seq_len"}, args.max_seq_len);
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"moe_hidden_dim", args.moe_hidden_dim},
                                                              {"kv_lora_rank", args.kv_lora_rank},
                                                              {"q_lora_rank", args.q_lora_rank},
                                                              {"qk_nope_head_dim", args.qk_nope_head_dim},
                                                              {"qk_rope_head_dim", args.qk_rope_head_dim},
                                                              {"v_head_dim", args.v_head_dim}})
    in_range({key}, value, 0, static_cast<int64_t>(kLargestSize), "2^31");
  if (problems.empty()) check_size(args, problems);
  if (args.n_kv_heads > 0 && args.n_heads % args.n_kv_heads != 0)
    problems.push_back({{"n_heads", "n_kv_heads"},
                        fmt::format("n_heads is {}, expected a multiple of n_kv_heads = {}", args.n_heads,
                                    args.n_kv_heads)});
  if (args.kv_lora_rank > 0) {
    positive({"qk_nope_head_dim"}, args.qk_nope_head_dim);
    positive({"qk_rope_head_dim"}, args.qk_rope_head_dim);
    if (args.v_head_dim < 1 || args.v_head_dim > args.head_dim)
      problems.push_back({{"v_head_dim"},
                          fmt::format("v_head_dim is {}, expected a value from 1 to the {} elements of a key",
                                      args.v_head_dim, args.head_dim)});
    if (args.qk_rope_head_dim % 2 != 0)
      problems.push_back({{"qk_rope_head_dim"},
                          fmt::format("qk_rope_head_dim is {}, expected an even number (RoPE rotates pairs)",
                                      args.qk_rope_head_dim)});
    if (args.n_kv_heads != args.n_heads)
      problems.push_back({{"n_kv_heads", "n_heads"},
                          fmt::format("n_kv_heads is {}, expected n_heads = {}: latent attention has as many",
                                      args.n_kv_heads, args.n_heads)});
  }
  check_experts(args, problems);
  if (args.kv_lora_rank == 0 && args.head_dim % 2 != 0)
    problems.push_back(
        {{"head_dim", "n_heads", "dim"},
         fmt::format("head_dim is {}{}, expected an even number (RoPE rotates pairs)", args.head_dim,
                     args.n_heads > 0 && args.head_dim == args.dim / args.n_heads
                         ? fmt::format(" (dim {} / {} heads)", args.dim, args.n_heads)
                         : "")});
  const auto number = [&](bool good, const char* key, double seen, const char* expected) {
    if (!good) problems.push_back({{key}, fmt::format("{} is {}, expected {}", key, seen, expected)});
  };
  number(args.rope_factor >= 1, "rope_factor", args.rope_factor, "at least 1");
  number(args.rope_low_freq_factor > 0, "rope_low_freq_factor", args.rope_low_freq_factor,
         "a number above 0");
  number(args.rope_high_freq_factor >= args.rope_low_freq_factor, "rope_high_freq_factor",
         args.rope_high_freq_factor, "at least rope_low_freq_factor");
  number(args.rope_original_length >= 1, "rope_original_length",
         static_cast<double>(args.rope_original_length), "at least 1");
  number(!args.rope_yarn || args.rope_beta_slow <= args.rope_beta_fast, "rope_beta_slow", args.rope_beta_slow,
         "at most rope_beta_fast");
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, double>>{
           {"norm_eps", args.norm_eps},
           {"rope_theta", args.rope_theta},
           {"rope_factor", args.rope_factor},
           {"rope_low_freq_factor", args.rope_low_freq_factor},
           {"rope_high_freq_factor", args.rope_high_freq_factor},
           {"rope_beta_fast", args.rope_beta_fast},
           {"rope_beta_slow", args.rope_beta_slow},
           {"rope_mscale", args.rope_mscale},
           {"route_scale", args.route_scale},
           {"load_balance_coeff", args.load_balance_coeff}})
    number(value == 0 || std::isnormal(static_cast<float>(value)), key, value,
           "a number from 1.2e-38 to 3.4e38: another is infinite or 0 in fp32, in which it is used");
  number(args.norm_eps > 0, "norm_eps", args.norm_eps, "a number above 0");
  number(args.rope_theta > 1, "rope_theta", args.rope_theta, "a number above 1");
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

}  // namespace hyperion::models
