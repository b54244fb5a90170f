#include "trainer/hugging_face/model_types.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/args/clamped_gate.h"
#include "trainer/hugging_face/config_values.h"

namespace hyperion::hugging_face {
namespace {

using models::ModelArgs;
using nlohmann::json;

json window_or_null(const ModelArgs& args) {
  return args.attention.window > 0 ? json(args.attention.window) : json();
}

void read_llama(const JsonNode& config, ModelArgs&) {
  must_be_off(config["mlp_bias"], "the feed-forward layers here have no bias");
}
void write_llama(const ModelArgs&, json& config) {
  config["mlp_bias"] = false;
}

// Llama's layers with the head's halves rotated and a window in all of them, or in none where it is null.
void read_mistral(const JsonNode& config, ModelArgs& args) {
  if (const JsonNode window = config["sliding_window"]; !config.object().contains("sliding_window"))
    args.attention.window = 4096;
  else if (!window.is_null())
    args.attention.window = size_in(window);
}
void write_mistral(const ModelArgs& args, json& config) {
  config["sliding_window"] = window_or_null(args);
}

// The last layers of Qwen have windows where they are switched on.
void read_qwen(const JsonNode& config, ModelArgs& args) {
  if (!config["use_sliding_window"].flag(false)) return;
  const JsonNode window = config["sliding_window"], first = config["max_window_layers"];
  if (config.object().contains("sliding_window") && window.is_null()) return;
  args.attention.window = size_in(window, 4096);
  args.attention.window_first_layer =
      first.is_null() ? 28 : static_cast<int64_t>(first.count(0, models::kMaxLayers));
}
void write_qwen(const ModelArgs& args, json& config) {
  const bool windows = args.attention.window > 0;
  config["use_sliding_window"] = windows;
  config.emplace("sliding_window", nullptr);  // unless imported
  if (!windows) return;
  config["sliding_window"] = args.attention.window;
  config["max_window_layers"] = args.attention.window_first_layer;
}

void read_qwen3_moe(const JsonNode& config, ModelArgs& args) {
  must_be_off(config["use_sliding_window"], "qwen3_moe has no sliding windows here");
  args.attention.head_dim = size_in(config["head_dim"], args.dim / args.attention.n_heads);
  const bool renamed = config["num_experts"].is_null();  // in transformers 5
  args.experts.num_experts = size_in(config[renamed ? "num_local_experts" : "num_experts"]);
  require_same_number(config["num_local_experts"], args.experts.num_experts, "num_experts");
  if (const JsonNode dense = config["mlp_only_layers"]; !dense.is_null())
    for (const json& layer : dense.array())
      if (layer != args.experts.n_dense_layers++) dense.refuse("the first layers, 0, 1 ... in order");
}
void write_qwen3_moe(const ModelArgs& args, json& config) {
  write_qwen(args, config);
  config["num_experts"] = args.experts.num_experts;
  config["mlp_only_layers"] = json::array();
  for (int64_t layer = 0; layer < std::min(args.experts.n_dense_layers, args.n_layers); ++layer)
    config["mlp_only_layers"].push_back(layer);
}

// Keys of deepseek_v3 that may have one value.
const std::pair<const char*, json> kDeepSeekConstants[] = {{"scoring_func", "sigmoid"},
                                                           {"topk_method", "noaux_tc"},
                                                           {"moe_layer_freq", 1},
                                                           {"rope_interleave", true}};

void read_deepseek_v3(const JsonNode& config, ModelArgs& args) {
  models::LatentArgs& latent = args.latent;
  require_same_number(config["num_local_experts"], args.experts.num_experts, "n_routed_experts");
  const JsonNode dense = config["first_k_dense_replace"];
  args.experts.n_dense_layers = dense.is_null() ? 3 : static_cast<int64_t>(dense.count(0, uint64_t{1} << 31));
  if (const int64_t groups = size_in(config["n_group"], 8); groups > 1) {
    args.experts.expert_groups = groups;
    args.experts.limited_groups = size_in(config["topk_group"], 4);
  }
  const bool names_latent = config.object().contains("q_lora_rank");  // null: queries have none
  latent.q_lora_rank =
      names_latent && config["q_lora_rank"].is_null() ? 0 : size_in(config["q_lora_rank"], 1536);
  args.attention.head_dim = latent.head_dim();
  require_same_number(config["head_dim"], latent.qk_rope_head_dim, "qk_rope_head_dim");
  require_same_number(config["qk_head_dim"], args.attention.head_dim, "qk_nope_head_dim + qk_rope_head_dim");
  for (const auto& [key, expected] : kDeepSeekConstants)
    if (!config[key].is_null() && config.object()[key] != expected) config[key].refuse(expected.dump());
}
void write_deepseek_v3(const ModelArgs& args, json& config) {
  for (const auto& [key, value] : kDeepSeekConstants) config[key] = value;
  config.update({{"first_k_dense_replace", args.experts.n_dense_layers},
                 {"head_dim", args.latent.qk_rope_head_dim},
                 {"n_group", std::max<int64_t>(args.experts.expert_groups, 1)},
                 {"num_nextn_predict_layers", 0},
                 {"q_lora_rank", args.latent.q_lora_rank > 0 ? json(args.latent.q_lora_rank) : json()},
                 {"topk_group", args.experts.expert_groups > 0 ? args.experts.limited_groups : 1}});
}

json layers_with_experts(const ModelArgs& args) {
  json layers = json::array();
  for (int64_t layer = 0; layer < args.n_layers; ++layer)
    if (args.experts.are_in(layer)) layers.push_back(layer);
  return layers;
}

void read_llama4(const JsonNode& config, ModelArgs& args) {
  const auto refuse = [&](const char* key, const char* meaning) {  // true is the default
    if (config[key].flag(true)) throw_config("{} is true, but {}", config[key].where(), meaning);
  };
  refuse("use_qk_norm", "heads are not normalised here");
  refuse("attn_temperature_tuning", "the scale of attention is that of all positions here");
  const auto each_block = [&](const char* key, const json& expected, const char* meaning) {
    if (config[key].is_null()) config[key].refuse(meaning);
    const json& all = config[key].array();
    if (static_cast<int64_t>(all.size()) != args.n_layers ||
        !std::ranges::all_of(all, [&](const json& one) { return one == expected; }))
      config[key].refuse(meaning);
  };
  each_block("no_rope_layers", 1, "1 for each layer (all are rotated here)");
  each_block("layer_types", "full_attention", "\"full_attention\" for each layer");
  if (const JsonNode layers = config["moe_layers"];
      !layers.is_null() && config.object()["moe_layers"] != layers_with_experts(args))
    layers.refuse("every interleave_moe_layer_step-th layer");
}
void write_llama4(const ModelArgs& args, json& config) {
  config.update({{"attn_temperature_tuning", false},
                 {"layer_types", layer_types(args)},
                 {"moe_layers", layers_with_experts(args)},
                 {"no_rope_layers", std::vector<int>(static_cast<size_t>(args.n_layers), 1)},
                 {"use_qk_norm", false}});
}

// Returns AttentionArgs::window_full_every by the first layer without a window; check_layer_types() checks
// the others.
int64_t full_attention_every(const JsonNode& layers) {
  const json& types = layers.array();
  const auto first = std::ranges::find(types, json("full_attention"));
  return first == types.end() ? 0 : first - types.begin() + 1;
}

void read_gpt_oss(const JsonNode& config, ModelArgs& args) {
  models::AttentionArgs& attention = args.attention;
  const bool has_windows = !config.object().contains("sliding_window") || !config["sliding_window"].is_null();
  if (has_windows) attention.window = size_in(config["sliding_window"], 128);
  const JsonNode layers = config["layer_types"];
  attention.window_full_every = layers.is_null() ? 2 : full_attention_every(layers);
  if (attention.window_full_every == 1) attention.window = attention.window_full_every = 0;
  if (!has_windows) attention.window_full_every = 0;
  const JsonNode chosen = config["num_experts_per_tok"];
  args.experts.top_k = size_in(chosen.is_null() ? config["experts_per_token"] : chosen, 4);
  require_same_number(config["experts_per_token"], args.experts.top_k, "num_experts_per_tok");
  for (const auto& [key, value] :
       {std::pair("swiglu_limit", models::kGateLimit), {"swiglu_alpha", models::kGateSlope}})
    if (std::abs(number_in(config[key], value) - value) > 1e-6)
      config[key].refuse(fmt::format("{:.4g}", value));
}
void write_gpt_oss(const ModelArgs& args, json& config) {
  config.update({{"experts_per_token", args.experts.top_k},
                 {"initial_context_length", args.rope.original_length},
                 {"layer_types", layer_types(args)},
                 {"num_experts_per_tok", args.experts.top_k},
                 {"sliding_window", window_or_null(args)},
                 {"swiglu_alpha", models::kGateSlope},
                 {"swiglu_limit", models::kGateLimit}});
}

constexpr ModelType kModelTypes[] = {
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .family = "llama3",
     .read = read_llama,
     .write = write_llama,
     .heads_divide_width = true,
     .reorders_heads = true},
    {.name = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .family = "qwen2",
     .read = read_qwen,
     .write = write_qwen,
     .biases = Biases::kQkv,
     .why_no_bias = "Qwen2 has no bias of the output projection",
     .windows = Windows::kLastLayers,
     .rope_style = models::RopeStyle::kHalfSplit},
    {.name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .family = "qwen3",
     .read = read_qwen,
     .write = write_qwen,
     .head_dim = 128,
     .qk_norm = true,
     .windows = Windows::kLastLayers,
     .rope_style = models::RopeStyle::kHalfSplit},
    {.name = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .family = "qwen3",
     .read = read_qwen3_moe,
     .write = write_qwen3_moe,
     .head_dim = std::nullopt,
     .qk_norm = true,
     .rope_style = models::RopeStyle::kHalfSplit,
     .experts = {.are_present = true, .may_begin_dense = true, .may_alternate = true, .router_loss = true}},
    {.name = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .family = "deepseek_v3",
     .read = read_deepseek_v3,
     .write = write_deepseek_v3,
     .head_dim = std::nullopt,
     .latent = true,
     .why_no_bias = "latent attention has no bias here",
     .next_token_block = true,
     .experts = {.are_present = true,
                 .score_func = models::ScoreFunction::kSigmoid,
                 .shared_experts = std::nullopt,
                 .may_group = true,
                 .may_begin_dense = true,
                 .balance_bias = true}},
    {.name = "llama4_text",
     .architecture = "Llama4ForCausalLM",
     .family = "llama4",
     .read = read_llama4,
     .write = write_llama4,
     .head_dim = 128,
     .rope_theta = 5e5,
     .may_equal_frequencies = true,
     .experts = {.are_present = true,
                 .score_func = models::ScoreFunction::kSigmoid,
                 .score_before_experts = true,
                 .route_norm = false,
                 .shared_experts = 1,
                 .may_alternate = true}},
    {.name = "mistral",
     .architecture = "MistralForCausalLM",
     .family = "mistral",
     .read = read_mistral,
     .write = write_mistral,
     .n_kv_heads = 8,
     .biases = Biases::kNone,
     .why_no_bias = "Mistral's attention has no bias",
     .windows = Windows::kAllLayers,
     .rope_style = models::RopeStyle::kHalfSplit},
    {.name = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .family = "gpt_oss",
     .read = read_gpt_oss,
     .write = write_gpt_oss,
     .head_dim = 64,
     .n_kv_heads = 8,
     .rope_theta = 1.5e5,
     .flavor_rope = true,
     .attention_biases = true,
     .sinks = true,
     .windows = Windows::kPattern,
     .rope_style = models::RopeStyle::kHalfSplit,
     .quantization = Quantization::kMxfp4,
     .experts = {.are_present = true,
                 .route_norm = true,
                 .clamped = true,
                 .router_bias = true,
                 .router_loss = true}}};

}  // namespace

std::span<const ModelType> model_types() {
  return kModelTypes;
}

const ModelType& model_type_of(const ModelArgs& args) {
  const ModelType* found = nullptr;
  for (const ModelType& type : kModelTypes)
    if (type.family == args.family &&
        (found == nullptr || type.experts.are_present == args.experts.are_present()))
      found = &type;
  if (found == nullptr) throw_bug("model family \"{}\" has no model_type of Hugging Face", args.family);
  return *found;
}

std::vector<std::string> layer_types(const ModelArgs& args) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < args.n_layers; ++layer)
    types.emplace_back(args.attention.has_window(layer) ? "sliding_attention" : "full_attention");
  return types;
}

}  // namespace hyperion::hugging_face
