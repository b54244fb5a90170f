#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/config_keys.h"
#include "trainer/hugging_face/config_values.h"
#include "trainer/hugging_face/model_types.h"

namespace hyperion::hugging_face {
namespace {

using models::ModelArgs;
using nlohmann::json;

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

// Reads rope_parameters, or rope_scaling before transformers 5, with rope_theta inside or next to it. If both
// exist, transformers 5 prefers a rope_scaling that is not empty.
void read_rope(const JsonNode& config, const ModelType& type, ModelArgs& args) {
  const JsonNode scaling = config["rope_scaling"];
  const JsonNode rope = scaling.is_null() || scaling.object().empty() ? config["rope_parameters"] : scaling;
  for (const char* nested : {"full_attention", "sliding_attention", "chunked_attention"})
    if (!rope[nested].is_null()) rope[nested].refuse("one set of RoPE parameters for all blocks");
  args.rope.theta = number_in(rope["rope_theta"], number_in(config["rope_theta"], type.rope_theta));
  for (const JsonNode& factor : {config["partial_rotary_factor"], rope["partial_rotary_factor"]})
    if (number_in(factor, 1.0) != 1.0) factor.refuse("1 (whole heads are rotated here)");
  if (type.flavor_rope && config["rope_scaling"].is_null() && config["rope_parameters"].is_null()) {
    const double theta = args.rope.theta;
    args.rope = models::model_args(args.family, models::kFlavorFromHf, {}, /*any_dimensions=*/true).rope;
    args.rope.theta = theta;
    return;
  }
  const JsonNode kind = rope[rope["rope_type"].is_null() ? "type" : "rope_type"];
  args.rope.scaling = text_in(kind, "default") == "llama3" && !args.latent.is_present();
  if (text_in(kind, "default") == "default") return;
  if (args.latent.is_present()) {
    if (kind.text() != "yarn") kind.refuse("\"default\" or \"yarn\", the types computed here");
    return read_yarn(config, rope, args);
  }
  if (kind.text() == "yarn") return read_plain_yarn(config, rope, args);
  if (!args.rope.scaling) kind.refuse("\"default\", \"llama3\" or \"yarn\", the types computed here");
  args.rope.factor = rope["factor"].positive_number();
  args.rope.low_freq_factor = rope["low_freq_factor"].positive_number();
  args.rope.high_freq_factor = rope["high_freq_factor"].positive_number();
  args.rope.original_length = original_length(config, rope, args);
  if (args.rope.factor < 1) rope["factor"].refuse("at least 1");
  const bool may_be_equal = type.may_equal_frequencies;
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

// With output_router_logits transformers adds the loss of a balance to that of the model. It averages over
// all layers before it multiplies, so its loss is ours if one layer has experts.
void read_router_loss(const JsonNode& config, ModelArgs& args) {
  if (!config["output_router_logits"].flag(false) || args.experts.blocks(args.n_layers) != 1) return;
  const JsonNode coefficient = config["router_aux_loss_coef"];
  const bool zero = !coefficient.is_null() && config.object().at("router_aux_loss_coef") == 0;
  args.experts.losses.global = zero ? 0 : number_in(coefficient, 0.001);
}

// Sets what all models of the type have.
void apply(const ModelType& type, ModelArgs& args) {
  args.family = type.family;
  args.rope.style = type.rope_style;
  args.attention.qk_norm = type.qk_norm;
  args.attention.sinks = type.sinks;
  const ExpertRules& rules = type.experts;
  args.experts.score_func = rules.score_func;
  args.experts.score_before_experts = rules.score_before_experts;
  args.experts.route_norm = rules.route_norm.value_or(args.experts.route_norm);
  args.experts.num_shared_experts = rules.shared_experts.value_or(args.experts.num_shared_experts);
  args.experts.clamped = rules.clamped;
  args.experts.router_bias = rules.router_bias;
}

// Reads the numbers of heads and their width.
void read_heads(const JsonNode& config, const ModelType& type, ModelArgs& args) {
  models::AttentionArgs& attention = args.attention;
  const bool reads_kv_heads = type.n_kv_heads == 0 || config.object().contains("num_key_value_heads");
  attention.n_kv_heads =
      reads_kv_heads ? size_in(config["num_key_value_heads"], attention.n_heads) : type.n_kv_heads;
  if (!type.head_dim) return;
  const JsonNode head_dim = config["head_dim"];
  if (*type.head_dim == 0 && head_dim.is_null() && args.dim % attention.n_heads != 0)
    throw_config("{}: has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                 config.where(), args.dim, attention.n_heads);
  attention.head_dim = size_in(head_dim, *type.head_dim > 0 ? *type.head_dim : args.dim / attention.n_heads);
}

// attention_bias gives wq, wk, wv and wo a bias, unless the type has other biases.
void read_attention_bias(const JsonNode& key, const ModelType& type, ModelArgs& args) {
  args.attention.qkv_bias = type.biases == Biases::kQkv;
  if (!type.why_no_bias.empty()) return must_be_off(key, type.why_no_bias);
  args.attention.qkv_bias = args.attention.output_bias = key.flag(type.attention_biases);
}

// Accepts fp8 weights with one scale per 128 x 128 block, as in DeepSeek-V3, and the experts of gpt_oss in
// MXFP4; refuses other quantization.
void read_quantization(const JsonNode& config, const ModelType& type) {
  if (config.is_null()) return;
  const json& values = config.object();
  const json method = values.value("quant_method", json());
  switch (type.quantization) {
    case Quantization::kMxfp4:
      if (method != "mxfp4")
        throw_config("{}: is not mxfp4, the only one that is read: use the model's original files",
                     config.where());
      break;
    case Quantization::kFp8Blocks:
      if (method != "fp8" || values.value("weight_block_size", json()) != json{128, 128})
        throw_config(
            "{}: is none of fp8 with blocks of 128 x 128, the only one that is read: use the model's "
            "original "
            "files",
            config.where());
      break;
  }
}

}  // namespace

ModelArgs parse_hf_config(std::string_view text, const std::string& name,
                          std::vector<std::string>* warnings) {
  const json values = parse_json(text, name);
  const JsonNode config(values, name);
  const std::string model_type = text_in(config["model_type"], "");
  const auto found = std::ranges::find(model_types(), model_type, &ModelType::name);
  if (found == model_types().end()) {
    std::vector<std::string_view> known;
    for (const ModelType& one : model_types()) known.push_back(one.name);
    throw_config("{}: model_type is \"{:.60}\", expected \"{}\", the models this program computes", name,
                 model_type, fmt::join(known, "\" or \""));
  }
  const ModelType& type = *found;
  ModelArgs args;
  apply(type, args);
  read_fields(config, type.name, args);
  read_heads(config, type, args);
  type.read(config, args);
  if (type.experts.router_loss) read_router_loss(config, args);
  read_attention_bias(config["attention_bias"], type, args);
  const JsonNode dropout = config["attention_dropout"];
  if (!dropout.is_null() && values["attention_dropout"] != 0)
    dropout.refuse("0, because there is no dropout here");
  check_layer_types(config["layer_types"], args);
  const std::vector<std::string> unknown = check_config_keys(config, type.name);
  read_quantization(config["quantization_config"], type);
  read_rope(config, type, args);
  if (warnings != nullptr) {
    *warnings = contradictions(values, name);
    const int64_t with_experts = args.experts.blocks(args.n_layers);
    if (type.experts.router_loss && with_experts > 1 && config["output_router_logits"].flag(false))
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
