#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/printable.h"
#include "models/args/clamped_gate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/config_keys.h"

namespace hyperion::hugging_face {
namespace {

using models::ModelArgs;
using nlohmann::json;

int64_t size_in(const JsonNode& node, std::optional<int64_t> otherwise = {}) {
  if (node.is_null() && otherwise) return *otherwise;
  return static_cast<int64_t>(node.count(1, uint64_t{1} << 31));
}
double number_in(const JsonNode& node, double otherwise) {
  return node.is_null() ? otherwise : node.positive_number();
}
std::string text_in(const JsonNode& node, const std::string& otherwise) {
  return node.is_null() ? otherwise : node.text();
}
// Refuses a switch that is on.
void must_be_off(const JsonNode& node, const char* meaning) {
  if (node.flag(false)) throw_config("{} = true, but {}", node.where(), meaning);
}

// Refuses every value except the only one that this program supports.
void must_be(const JsonNode& node, const json& value, const json& expected) {
  if (!node.is_null() && value != expected) node.refuse(expected.dump());
}

models::Activation activation_in(const JsonNode& node) {
  constexpr std::pair<models::Activation, std::string_view> kHiddenActs[] = {
#define ACTIVATION(name, text, hidden_act) {models::Activation::k##name, hidden_act},
#include "models/args/activations.def"
  };
  const std::string text = text_in(node, "silu");
  std::vector<std::string_view> known;
  for (const auto& [activation, name] : kHiddenActs) {
    if (text == name) return activation;
    known.push_back(name);
  }
  node.refuse(fmt::format("\"{}\", the activations computed here", fmt::join(known, "\" or \"")));
}

// Returns the length next to the parameters, which transformers prefers to the length among them; without
// both the model's length.
int64_t original_length(const JsonNode& config, const JsonNode& rope, const ModelArgs& args) {
  const JsonNode beside = config["original_max_position_embeddings"];
  return size_in(beside.is_null() ? rope["original_max_position_embeddings"] : beside, args.max_seq_len);
}

// DeepSeek's rule: if mscale equals mscale_all_dim, attention is scaled, but cosines and sines are not.
void read_yarn(const JsonNode& config, const JsonNode& rope, ModelArgs& args) {
  args.rope.yarn = args.rope.scaling = true;  // whatever the length
  args.rope.factor = rope["factor"].positive_number();
  args.rope.original_length = original_length(config, rope, args);
  args.rope.beta_fast = number_in(rope["beta_fast"], 32);
  args.rope.beta_slow = number_in(rope["beta_slow"], 1);
  args.rope.mscale = rope["mscale_all_dim"].positive_number();
  if (rope["mscale"].positive_number() != args.rope.mscale)
    rope["mscale"].refuse("the value of mscale_all_dim (cosines and sines are not scaled here)");
  if (!rope["attention_factor"].is_null())
    rope["attention_factor"].refuse("none (it follows from mscale here)");
  if (!rope["truncate"].flag(true)) rope["truncate"].refuse("true");
  if (args.rope.factor < 1) rope["factor"].refuse("at least 1");
}

// The rule of all other models: cosines and sines are multiplied by 0.1 ln(factor) + 1.
void read_plain_yarn(const JsonNode& config, const JsonNode& rope, ModelArgs& args) {
  args.rope.yarn = args.rope.scaling = true;  // whatever the length
  args.rope.factor = rope["factor"].positive_number();
  if (args.rope.factor < 1) rope["factor"].refuse("at least 1");
  args.rope.original_length = original_length(config, rope, args);
  args.rope.beta_fast = number_in(rope["beta_fast"], 32);
  args.rope.beta_slow = number_in(rope["beta_slow"], 1);
  args.rope.truncate = rope["truncate"].flag(true);
  args.rope.mscale = 1;
  const double factor = models::yarn_factor(args.rope);
  const JsonNode given = rope["attention_factor"];
  if (std::abs(number_in(given, factor) - factor) > 1e-6 * factor)
    given.refuse(fmt::format("{} or none, 0.1 ln(factor) + 1", factor));
  for (const char* key : {"mscale", "mscale_all_dim"})
    if (!rope[key].is_null()) rope[key].refuse("none (it is of latent attention here)");
}

double default_theta(std::string_view family) {
  return family == "llama4" ? 5e5 : family == "gpt_oss" ? 1.5e5 : 1e4;
}

// Reads rope_parameters, or rope_scaling before transformers 5, with rope_theta inside or next to it. If both
// exist, transformers 5 prefers a rope_scaling that is not empty.
void read_rope(const JsonNode& config, ModelArgs& args) {
  const JsonNode scaling = config["rope_scaling"];
  const JsonNode rope = scaling.is_null() || scaling.object().empty() ? config["rope_parameters"] : scaling;
  for (const char* nested : {"full_attention", "sliding_attention", "chunked_attention"})
    if (!rope[nested].is_null()) rope[nested].refuse("one set of RoPE parameters for all blocks");
  args.rope.theta =
      number_in(rope["rope_theta"], number_in(config["rope_theta"], default_theta(args.family)));
  for (const JsonNode& factor : {config["partial_rotary_factor"], rope["partial_rotary_factor"]})
    if (number_in(factor, 1.0) != 1.0) factor.refuse("1 (whole heads are rotated here)");
  if (args.family == "gpt_oss" && config["rope_scaling"].is_null() && config["rope_parameters"].is_null()) {
    const double theta = args.rope.theta;
    args.rope = models::model_args(args.family, models::kFlavorFromHf, {}, /*any_dimensions=*/true).rope;
    args.rope.theta = theta;
    return;
  }
  const JsonNode type = rope[rope["rope_type"].is_null() ? "type" : "rope_type"];
  args.rope.scaling = text_in(type, "default") == "llama3" && !args.latent.is_present();
  if (text_in(type, "default") == "default") return;
  if (args.latent.is_present()) {
    if (type.text() != "yarn") type.refuse("\"default\" or \"yarn\", the types computed here");
    return read_yarn(config, rope, args);
  }
  if (type.text() == "yarn") return read_plain_yarn(config, rope, args);
  if (!args.rope.scaling) type.refuse("\"default\", \"llama3\" or \"yarn\", the types computed here");
  args.rope.factor = rope["factor"].positive_number();
  args.rope.low_freq_factor = rope["low_freq_factor"].positive_number();
  args.rope.high_freq_factor = rope["high_freq_factor"].positive_number();
  args.rope.original_length = original_length(config, rope, args);
  if (args.rope.factor < 1) rope["factor"].refuse("at least 1");
  const bool may_be_equal = args.family == "llama4";
  if (args.rope.high_freq_factor < args.rope.low_freq_factor ||
      (args.rope.high_freq_factor == args.rope.low_freq_factor && !may_be_equal))
    rope["high_freq_factor"].refuse(may_be_equal ? "at least low_freq_factor" : "more than low_freq_factor");
}

// Returns the settings that the file has twice with different values. This program takes the same value as
// transformers.
std::vector<std::string> contradictions(const json& config, const std::string& name) {
  std::vector<std::string> texts;
  const auto part = [&](const std::string& key) {
    const json found = config.value(key, json());
    return found.is_object() ? found : json::object();
  };
  const json scaling = part("rope_scaling"), parameters = part("rope_parameters");
  const bool scaled = !scaling.empty();
  const json& rope = scaled ? scaling : parameters;
  const std::string inside = scaled ? "rope_scaling." : "rope_parameters.";
  const auto compare = [&](const std::string& used_place, const json& used, const std::string& other_place,
                           const json& other, const std::string& key) {
    const json a = used.value(key, json()), b = other.value(key, json());
    if (!a.is_null() && !b.is_null() && a != b)
      texts.push_back(fmt::format("{}: {}{} is {}, which counts, but {}{} is {}", name, used_place, key,
                                  a.dump(), other_place, key, b.dump()));
  };
  compare(inside, rope, "", config, "rope_theta");
  compare("", config, inside, rope, "original_max_position_embeddings");
  if (!scaled) return texts;
  for (const auto& [key, value] : scaling.items())
    compare(inside, scaling, "rope_parameters.", parameters, key);
  if (!scaling.contains("rope_theta")) compare("", config, "rope_parameters.", parameters, "rope_theta");
  if (!scaling.contains("rope_theta") && !config.contains("rope_theta") && parameters.contains("rope_theta"))
    texts.push_back(
        fmt::format("{}: rope_scaling counts, which has no rope_theta, so the default is used and "
                    "rope_parameters.rope_theta, {}, is not",
                    name, parameters["rope_theta"].dump()));
  return texts;
}

// The last layers of Qwen have windows where they are switched on. Missing keys have transformers' values.
void read_window_of_qwen(const JsonNode& config, ModelArgs& args) {
  const json& values = config.object();
  if (!config["use_sliding_window"].flag(false)) return;
  const JsonNode window = config["sliding_window"], first = config["max_window_layers"];
  if (values.contains("sliding_window") && window.is_null()) return;
  args.attention.window = size_in(window, 4096);
  args.attention.window_first_layer =
      first.is_null() ? 28 : static_cast<int64_t>(first.count(0, models::kMaxLayers));
}

void read_qwen3(const JsonNode& config, ModelArgs& args) {
  args.family = "qwen3";
  args.rope.style = models::RopeStyle::kHalfSplit;
  args.attention.qk_norm = true;
  args.attention.head_dim = size_in(config["head_dim"], 128);
  args.max_seq_len = size_in(config["max_position_embeddings"], 32768);
  read_window_of_qwen(config, args);
}

void read_qwen2(const JsonNode& config, ModelArgs& args) {
  args.family = "qwen2";
  args.rope.style = models::RopeStyle::kHalfSplit;
  args.attention.qkv_bias = true;
  if (config["head_dim"].is_null() && args.dim % args.attention.n_heads != 0)
    throw_config("{}: has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                 config.where(), args.dim, args.attention.n_heads);
  args.attention.head_dim = size_in(config["head_dim"], args.dim / args.attention.n_heads);
  args.max_seq_len = size_in(config["max_position_embeddings"], 32768);
  read_window_of_qwen(config, args);
}

void read_llama(const JsonNode& config, ModelArgs& args) {
  args.family = "llama3";
  if (config["head_dim"].is_null() && args.dim % args.attention.n_heads != 0)
    throw_config("{}: has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                 config.where(), args.dim, args.attention.n_heads);
  args.attention.head_dim = size_in(config["head_dim"], args.dim / args.attention.n_heads);
  args.max_seq_len = size_in(config["max_position_embeddings"], 2048);
  must_be_off(config["mlp_bias"], "the feed-forward layers here have no bias");
}

// Llama's layers with the head's halves rotated and a window in all of them, or in none where it is null.
// Missing keys have transformers' values.
void read_mistral(const JsonNode& config, ModelArgs& args) {
  const json& values = config.object();
  args.family = "mistral";
  args.rope.style = models::RopeStyle::kHalfSplit;
  if (!values.contains("num_key_value_heads")) args.attention.n_kv_heads = 8;
  if (config["head_dim"].is_null() && args.dim % args.attention.n_heads != 0)
    throw_config("{}: has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                 config.where(), args.dim, args.attention.n_heads);
  args.attention.head_dim = size_in(config["head_dim"], args.dim / args.attention.n_heads);
  args.max_seq_len = size_in(config["max_position_embeddings"], 131072);
  if (!values.contains("sliding_window"))
    args.attention.window = 4096;
  else if (!config["sliding_window"].is_null())
    args.attention.window = size_in(config["sliding_window"]);
}

// Checks that layer_types has a window where the model has one.
void check_layer_types(const JsonNode& layers, const ModelArgs& args) {
  if (layers.is_null()) return;
  const json& types = layers.array();
  const auto expected = [&](int64_t layer) {
    return args.attention.has_window(layer) ? "sliding_attention" : "full_attention";
  };
  bool alike = static_cast<int64_t>(types.size()) == args.n_layers;
  for (int64_t layer = 0; alike && layer < args.n_layers; ++layer)
    alike = types[static_cast<size_t>(layer)] == expected(layer);
  if (alike) return;
  if (args.attention.window == 0) layers.refuse("\"full_attention\" for each layer");
  layers.refuse(fmt::format("\"{}\" for the first layer, and so on by sliding_window", expected(0)));
}

// Checks a second key for the same setting.
void require_same_number(const JsonNode& node, int64_t value, const char* other) {
  if (!node.is_null() && size_in(node) != value)
    node.refuse(fmt::format("{}, the value of {}", value, other));
}

// Reads the settings common to all MoE models.
void read_experts(const JsonNode& config, const char* experts, const char* width, ModelArgs& args) {
  args.experts.num_experts = size_in(config[experts]);
  args.experts.hidden_dim = size_in(config[width]);
  args.experts.top_k = size_in(config["num_experts_per_tok"]);
}

// With output_router_logits transformers adds the loss of a balance to that of the model. It averages over
// all layers before it multiplies, so its loss is ours if one layer has experts.
void read_router_loss(const JsonNode& config, ModelArgs& args) {
  if (!config["output_router_logits"].flag(false) || args.experts.blocks(args.n_layers) != 1) return;
  const JsonNode coefficient = config["router_aux_loss_coef"];
  const bool zero = !coefficient.is_null() && config.object().at("router_aux_loss_coef") == 0;
  args.experts.losses.global = zero ? 0 : number_in(coefficient, 0.001);
}

void read_qwen3_moe(const JsonNode& config, ModelArgs& args) {
  must_be_off(config["use_sliding_window"], "qwen3_moe has no sliding windows here");
  read_qwen3(config, args);
  args.attention.head_dim = size_in(config["head_dim"], args.dim / args.attention.n_heads);
  const bool renamed = config["num_experts"].is_null();  // in transformers 5
  read_experts(config, renamed ? "num_local_experts" : "num_experts", "moe_intermediate_size", args);
  require_same_number(config["num_local_experts"], args.experts.num_experts, "num_experts");
  args.experts.route_norm = config["norm_topk_prob"].flag(false);
  args.experts.moe_every = size_in(config["decoder_sparse_step"], 1);
  if (const JsonNode dense = config["mlp_only_layers"]; !dense.is_null())
    for (const json& layer : dense.array())
      if (layer != args.experts.n_dense_layers++) dense.refuse("the first layers, 0, 1 ... in order");
  read_router_loss(config, args);
}

void read_deepseek_v3(const JsonNode& config, ModelArgs& args) {
  args.family = "deepseek_v3";
  args.max_seq_len = size_in(config["max_position_embeddings"], 4096);
  read_experts(config, "n_routed_experts", "moe_intermediate_size", args);
  require_same_number(config["num_local_experts"], args.experts.num_experts, "n_routed_experts");
  args.experts.num_shared_experts = size_in(config["n_shared_experts"], 1);
  const JsonNode dense = config["first_k_dense_replace"];
  args.experts.n_dense_layers = dense.is_null() ? 3 : static_cast<int64_t>(dense.count(0, uint64_t{1} << 31));
  args.experts.score_func = models::ScoreFunction::kSigmoid;
  args.experts.route_norm = config["norm_topk_prob"].flag(true);
  args.experts.route_scale = number_in(config["routed_scaling_factor"], 2.5);
  if (const int64_t groups = size_in(config["n_group"], 8); groups > 1) {
    args.experts.expert_groups = groups;
    args.experts.limited_groups = size_in(config["topk_group"], 4);
  }
  args.latent.kv_lora_rank = size_in(config["kv_lora_rank"], 512);
  const bool names_latent = config.object().contains("q_lora_rank");  // null: queries have none
  args.latent.q_lora_rank =
      names_latent && config["q_lora_rank"].is_null() ? 0 : size_in(config["q_lora_rank"], 1536);
  args.latent.qk_nope_head_dim = size_in(config["qk_nope_head_dim"], 128);
  args.latent.qk_rope_head_dim = size_in(config["qk_rope_head_dim"], 64);
  args.latent.v_head_dim = size_in(config["v_head_dim"], 128);
  args.attention.head_dim = args.latent.qk_nope_head_dim + args.latent.qk_rope_head_dim;
  require_same_number(config["head_dim"], args.latent.qk_rope_head_dim, "qk_rope_head_dim");
  require_same_number(config["qk_head_dim"], args.attention.head_dim, "qk_nope_head_dim + qk_rope_head_dim");
  const json& values = config.object();
  const auto only = [&](const char* key, const json& expected) {
    must_be(config[key], values.value(key, json()), expected);
  };
  only("scoring_func", "sigmoid");
  only("topk_method", "noaux_tc");
  only("moe_layer_freq", 1);
  only("rope_interleave", true);
}

void read_llama4(const JsonNode& config, ModelArgs& args) {
  args.family = "llama4";
  args.attention.head_dim = size_in(config["head_dim"], 128);
  args.max_seq_len = size_in(config["max_position_embeddings"], 131072);
  read_experts(config, "num_local_experts", "intermediate_size", args);
  args.dense.hidden_dim = size_in(config["intermediate_size_mlp"], 16384);
  args.experts.num_shared_experts = 1;
  args.experts.moe_every = size_in(config["interleave_moe_layer_step"], 1);
  args.experts.score_func = models::ScoreFunction::kSigmoid;
  args.experts.score_before_experts = true;
  const auto refuse = [&](const char* key, bool default_value, const char* meaning) {
    if (config[key].flag(default_value)) throw_config("{} is true, but {}", config[key].where(), meaning);
  };
  refuse("use_qk_norm", true, "heads are not normalised here");
  refuse("attn_temperature_tuning", true, "the scale of attention is that of all positions here");
  const auto each_block = [&](const char* key, const json& expected, const char* meaning) {
    if (config[key].is_null()) config[key].refuse(meaning);
    const json& all = config[key].array();
    if (static_cast<int64_t>(all.size()) != args.n_layers ||
        !std::ranges::all_of(all, [&](const json& one) { return one == expected; }))
      config[key].refuse(meaning);
  };
  each_block("no_rope_layers", 1, "1 for each layer (all are rotated here)");
  each_block("layer_types", "full_attention", "\"full_attention\" for each layer");
  const JsonNode layers = config["moe_layers"];
  if (layers.is_null()) return;
  json expected = json::array();
  for (int64_t layer = 0; layer < args.n_layers; ++layer)
    if (args.experts.are_in(layer)) expected.push_back(layer);
  if (config.object().at("moe_layers") != expected) layers.refuse("every interleave_moe_layer_step-th layer");
}

// Returns AttentionArgs::window_full_every by the first layer without a window; check_layer_types() checks
// the others.
int64_t full_attention_every(const JsonNode& layers) {
  const json& types = layers.array();
  const auto first = std::ranges::find(types, json("full_attention"));
  return first == types.end() ? 0 : first - types.begin() + 1;
}

// Missing keys have transformers' values.
void read_gpt_oss(const JsonNode& config, ModelArgs& args) {
  const json& values = config.object();
  args.family = "gpt_oss";
  args.rope.style = models::RopeStyle::kHalfSplit;
  if (!values.contains("num_key_value_heads")) args.attention.n_kv_heads = 8;
  args.attention.head_dim = size_in(config["head_dim"], 64);
  args.attention.sinks = true;
  args.max_seq_len = size_in(config["max_position_embeddings"], 131072);
  const bool has_windows = !values.contains("sliding_window") || !config["sliding_window"].is_null();
  if (has_windows) args.attention.window = size_in(config["sliding_window"], 128);
  const JsonNode layers = config["layer_types"];
  args.attention.window_full_every = layers.is_null() ? 2 : full_attention_every(layers);
  if (args.attention.window_full_every == 1) args.attention.window = args.attention.window_full_every = 0;
  if (!has_windows) args.attention.window_full_every = 0;
  const JsonNode chosen = config["num_experts_per_tok"];
  args.experts = {.num_experts = size_in(config["num_local_experts"]),
                  .hidden_dim = args.dense.hidden_dim,
                  .clamped = true,
                  .router_bias = true,
                  .top_k = size_in(chosen.is_null() ? config["experts_per_token"] : chosen, 4),
                  .route_norm = true};
  require_same_number(config["experts_per_token"], args.experts.top_k, "num_experts_per_tok");
  for (const auto& [key, value] :
       {std::pair("swiglu_limit", models::kGateLimit), {"swiglu_alpha", models::kGateSlope}})
    if (std::abs(number_in(config[key], value) - value) > 1e-6)
      config[key].refuse(fmt::format("{:.4g}", value));
  read_router_loss(config, args);
}

struct Family {
  std::string_view type;
  void (*read)(const JsonNode& config, ModelArgs& args);
};
constexpr Family kFamilies[] = {{"llama", read_llama},
                                {"qwen2", read_qwen2},
                                {"qwen3", read_qwen3},
                                {"qwen3_moe", read_qwen3_moe},
                                {"deepseek_v3", read_deepseek_v3},
                                {"llama4_text", read_llama4},
                                {"mistral", read_mistral},
                                {"gpt_oss", read_gpt_oss}};

// attention_bias gives wq, wk, wv and wo a bias. Qwen2's wq, wk and wv always have one.
void read_attention_bias(const JsonNode& key, ModelArgs& args) {
  if (args.family == "qwen2") return must_be_off(key, "Qwen2 has no bias of the output projection");
  if (args.family == "mistral") return must_be_off(key, "Mistral's attention has no bias");
  if (args.latent.is_present()) return must_be_off(key, "latent attention has no bias here");
  args.attention.qkv_bias = args.attention.output_bias = key.flag(args.family == "gpt_oss");
}

// Accepts fp8 weights with one scale per 128 x 128 block, as in DeepSeek-V3, and the experts of gpt_oss in
// MXFP4; refuses other quantization.
void read_quantization(const JsonNode& config, const ModelArgs& args) {
  if (config.is_null()) return;
  const json& values = config.object();
  if (args.family == "gpt_oss") {
    if (values.value("quant_method", json()) != "mxfp4")
      throw_config("{}: is not mxfp4, the only one that is read: use the model's original files",
                   config.where());
    return;
  }
  if (values.value("quant_method", json()) != "fp8" ||
      values.value("weight_block_size", json()) != json{128, 128})
    throw_config(
        "{}: is none of fp8 with blocks of 128 x 128, the only one that is read: use the model's original "
        "files",
        config.where());
}

}  // namespace

ModelArgs parse_hf_config(std::string_view text, const std::string& name,
                          std::vector<std::string>* warnings) {
  const json values = parse_json(text, name);
  const JsonNode config(values, name);
  const std::string type = text_in(config["model_type"], "");
  const auto family = std::ranges::find(kFamilies, type, &Family::type);
  if (family == std::end(kFamilies)) {
    std::vector<std::string_view> known;
    for (const Family& one : kFamilies) known.push_back(one.type);
    throw_config("{}: model_type is \"{:.60}\", expected \"{}\", the models this program computes", name,
                 type, fmt::join(known, "\" or \""));
  }
  ModelArgs args;
  args.dim = size_in(config["hidden_size"]);
  args.n_layers = size_in(config["num_hidden_layers"]);
  args.attention.n_heads = size_in(config["num_attention_heads"]);
  args.attention.n_kv_heads = size_in(config["num_key_value_heads"], args.attention.n_heads);
  args.dense.hidden_dim = size_in(config["intermediate_size"]);
  args.vocab_size = size_in(config["vocab_size"]);
  args.tied = config["tie_word_embeddings"].flag(false);
  family->read(config, args);
  args.norm_eps =
      number_in(config["rms_norm_eps"], args.family == "llama4" || args.family == "gpt_oss" ? 1e-5 : 1e-6);
  args.activation = activation_in(config["hidden_act"]);
  read_attention_bias(config["attention_bias"], args);
  const JsonNode dropout = config["attention_dropout"];
  if (!dropout.is_null() && values["attention_dropout"] != 0)
    dropout.refuse("0, because there is no dropout here");
  check_layer_types(config["layer_types"], args);
  const std::vector<std::string> unknown = check_config_keys(config, type);
  read_quantization(config["quantization_config"], args);
  read_rope(config, args);
  if (warnings != nullptr) {
    *warnings = contradictions(values, name);
    const int64_t with_experts = args.experts.blocks(args.n_layers);
    if ((type == "qwen3_moe" || type == "gpt_oss") && with_experts > 1 &&
        config["output_router_logits"].flag(false))
      warnings->push_back(fmt::format(
          "{}: router_aux_loss_coef is not taken over: transformers makes one loss of its {} layers "
          "with experts, here each has its own (model.args.global_aux_loss_coeff)",
          name, with_experts));
    if (!unknown.empty())
      warnings->push_back(fmt::format("{}: keys that are not known here, and have no effect: {}", name,
                                      printable(fmt::format("{}", fmt::join(unknown, ", ")), 1000)));
  }
  if (args.attention.n_heads % args.attention.n_kv_heads != 0)
    throw_config("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", name,
                 args.attention.n_heads, args.attention.n_kv_heads);
  const int64_t rotated = args.latent.is_present() ? args.latent.qk_rope_head_dim : args.attention.head_dim;
  if (rotated % 2 != 0)
    throw_config(
        "{}: {} {} wide, expected an even number (RoPE rotates pairs)", name,
        args.latent.is_present() ? "the rotated parts of heads (qk_rope_head_dim) are" : "the heads are",
        rotated);
  return args;
}

ModelArgs read_hf_config(const std::filesystem::path& config_json) try {
  static std::set<std::string> warned;  // each file is read several times
  std::vector<std::string> warnings;
  ModelArgs args =
      parse_hf_config(read_file(config_json, kMaxSettingsBytes), config_json.string(), &warnings);
  if (warned.insert(config_json.string()).second)
    for (const std::string& warning : warnings) log_warning("{}", warning);
  return args;
} catch (const Error& error) {
  throw_config("{}", error.what());  // a configuration's fault, also when it is not valid JSON
}

}  // namespace hyperion::hugging_face
