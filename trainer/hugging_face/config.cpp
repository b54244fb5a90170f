#include "trainer/hugging_face/config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

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

// hidden_act of config.json.
constexpr std::pair<models::Activation, std::string_view> kHiddenActs[] = {
#define ACTIVATION(name, text, hidden_act) {models::Activation::k##name, hidden_act},
#include "models/flavors/activations.def"
};
std::string_view hidden_act(models::Activation activation) {
  return std::ranges::find(kHiddenActs, activation, &std::pair<models::Activation, std::string_view>::first)
      ->second;
}
models::Activation activation_in(const JsonNode& node) {
  const std::string text = text_in(node, "silu");
  std::vector<std::string_view> known;
  for (const auto& [activation, name] : kHiddenActs) {
    if (text == name) return activation;
    known.push_back(name);
  }
  node.refuse(fmt::format("\"{}\", the activations computed here", fmt::join(known, "\" or \"")));
}

// rope_parameters, or rope_scaling before transformers 5 (which reads it first where both are there), with
// rope_theta inside or next to it.
void read_rope(const JsonNode& config, ModelArgs& args) {
  const JsonNode rope = config[config["rope_scaling"].is_null() ? "rope_parameters" : "rope_scaling"];
  args.rope_theta = number_in(rope["rope_theta"], number_in(config["rope_theta"], 10000.0));
  for (const JsonNode& factor : {config["partial_rotary_factor"], rope["partial_rotary_factor"]})
    if (number_in(factor, 1.0) != 1.0) factor.refuse("1 (whole heads are rotated here)");
  const JsonNode type = rope[rope["rope_type"].is_null() ? "type" : "rope_type"];
  args.rope_scaling = text_in(type, "default") == "llama3";
  if (text_in(type, "default") == "default") {
    for (const char* nested : {"full_attention", "sliding_attention"})
      if (!rope[nested].is_null()) rope[nested].refuse("one set of RoPE parameters for all blocks");
    return;
  }
  if (!args.rope_scaling) type.refuse("\"default\" or \"llama3\", the types computed here");
  args.rope_factor = rope["factor"].positive_number();
  args.rope_low_freq_factor = rope["low_freq_factor"].positive_number();
  args.rope_high_freq_factor = rope["high_freq_factor"].positive_number();
  args.rope_original_length = size_in(rope["original_max_position_embeddings"], args.max_seq_len);
  if (args.rope_factor < 1) rope["factor"].refuse("at least 1");
  if (args.rope_high_freq_factor <= args.rope_low_freq_factor)
    rope["high_freq_factor"].refuse("more than low_freq_factor");
}

void read_qwen3(const JsonNode& config, ModelArgs& args) {
  args.family = "qwen3";
  args.rope_style = models::RopeStyle::kHalfSplit;
  args.qk_norm = true;
  args.head_dim = size_in(config["head_dim"], 128);
  args.max_seq_len = size_in(config["max_position_embeddings"], 32768);
  must_be_off(config["use_sliding_window"], "sliding windows are not computed here");
}

void read_llama(const JsonNode& config, ModelArgs& args) {
  args.family = "llama3";
  if (config["head_dim"].is_null() && args.dim % args.n_heads != 0)
    throw_config("{}: has no head_dim, and hidden_size {} is not a multiple of num_attention_heads {}",
                 config.where(), args.dim, args.n_heads);
  args.head_dim = size_in(config["head_dim"], args.dim / args.n_heads);
  args.max_seq_len = size_in(config["max_position_embeddings"], 2048);
  must_be_off(config["mlp_bias"], "the feed-forward layers here have no bias");
}

json imported_config(const HfExport& options) {
  return options.imported.config.empty() ? json::object() : json::parse(options.imported.config);
}

// The id or ids of config.json: as imported, else the tokenizer's, else null.
json exported_id(const HfExport& options, const char* key, const std::optional<int64_t>& of_tokenizer) {
  json id = imported_config(options).value(key, json());
  return id.is_null() && of_tokenizer ? json(*of_tokenizer) : id;
}

// "" where what was imported is what the tokenizer says.
std::string compare_id(const ImportedSettings& imported, const std::string& key,
                       const std::optional<int64_t>& of_tokenizer) {
  const std::vector<int64_t> ids = imported_ids(imported, key);
  if (ids.empty() || (of_tokenizer && ids == std::vector{*of_tokenizer})) return "";
  const bool stops = !of_tokenizer || key != "eos_token_id" || std::ranges::count(ids, *of_tokenizer) > 0;
  return fmt::format("{} is {}, as imported; the tokenizer's is {}{}", key, fmt::join(ids, ", "),
                     of_tokenizer ? std::to_string(*of_tokenizer) : "none",
                     stops ? ""
                           : ", by which documents end in training: add it in generation_config.json where "
                             "generated texts are to end by it too");
}

}  // namespace

ModelArgs parse_hf_config(std::string_view text, const std::string& name) {
  const json values = parse_json(text, name);
  const JsonNode config(values, name);
  const std::string type = text_in(config["model_type"], "");
  if (type != "llama" && type != "qwen3")
    throw_config(
        "{}: model_type is \"{:.60}\", expected \"llama\" or \"qwen3\", the models this program computes",
        name, type);
  ModelArgs args;
  args.dim = size_in(config["hidden_size"]);
  args.n_layers = size_in(config["num_hidden_layers"]);
  args.n_heads = size_in(config["num_attention_heads"]);
  args.n_kv_heads = size_in(config["num_key_value_heads"], args.n_heads);
  args.hidden_dim = size_in(config["intermediate_size"]);
  args.vocab_size = size_in(config["vocab_size"]);
  args.norm_eps = number_in(config["rms_norm_eps"], 1e-6);
  args.tied = config["tie_word_embeddings"].flag(false);
  if (type == "qwen3")
    read_qwen3(config, args);
  else
    read_llama(config, args);
  args.activation = activation_in(config["hidden_act"]);
  must_be_off(config["attention_bias"], "the attention layers here have no bias");
  const JsonNode dropout = config["attention_dropout"];
  if (!dropout.is_null() && values["attention_dropout"] != 0)
    dropout.refuse("0, because there is no dropout here");
  if (!config["quantization_config"].is_null())
    throw_config(
        "{}: has a quantization_config, but only plain weights are read: use the model's original files",
        name);
  read_rope(config, args);
  if (args.n_heads % args.n_kv_heads != 0)
    throw_config("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", name, args.n_heads,
                 args.n_kv_heads);
  if (args.head_dim % 2 != 0)
    throw_config("{}: the heads are {} wide, expected an even number (RoPE rotates pairs)", name,
                 args.head_dim);
  return args;
}

ModelArgs read_hf_config(const std::filesystem::path& config_json) try {
  return parse_hf_config(read_file(config_json, kMaxSettingsBytes), config_json.string());
} catch (const Error& error) {
  throw_config("{}", error.what());  // a configuration's fault, also when it is not valid JSON
}

std::optional<models::DimensionProblem> export_problem(const ModelArgs& args) {
  if (args.num_experts > 0 || (args.family != "llama3" && args.family != "qwen3"))
    return models::DimensionProblem{
        {"num_experts"},
        fmt::format("a {} model with experts or latent attention is not written in transformers' layout yet",
                    args.family)};
  const bool qwen3 = args.family == "qwen3";
  if (args.qk_norm != qwen3)
    return models::DimensionProblem{
        {"qk_norm"},
        fmt::format("qk_norm is {}, and transformers has no {} model {} it", args.qk_norm, args.family,
                    args.qk_norm ? "with" : "without")};
  if (!qwen3 && args.dim % args.n_heads != 0)
    return models::DimensionProblem{
        {"n_heads", "dim"},
        fmt::format("n_heads {} does not divide dim {}, and transformers refuses such a "
                    "llama model",
                    args.n_heads, args.dim)};
  return std::nullopt;
}

std::string hf_config(const ModelArgs& args, const HfExport& options) {
  if (const auto problem = export_problem(args))
    throw_config("the model cannot be exported to Hugging Face: {}", problem->text);
  const bool qwen3 = args.family == "qwen3";
  json scaling;  // null: none
  if (args.rope_scaling)
    scaling = {{"rope_type", "llama3"},
               {"factor", args.rope_factor},
               {"low_freq_factor", args.rope_low_freq_factor},
               {"high_freq_factor", args.rope_high_freq_factor},
               {"original_max_position_embeddings", args.rope_original_length}};
  json rope = args.rope_scaling ? scaling : json{{"rope_type", "default"}};
  rope["rope_theta"] = args.rope_theta;
  json config = {{"initializer_range", 0.02}, {"use_cache", true}};
  if (qwen3) config["sliding_window"] = nullptr;
  config.update(imported_config(options));
  if (config.contains("layer_types"))
    config["layer_types"] = std::vector<std::string>(static_cast<size_t>(args.n_layers), "full_attention");
  config.update({{"architectures", {qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM"}},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", exported_id(options, "bos_token_id", options.bos_token_id)},
                 {"dtype", options.dtype},
                 {"eos_token_id", exported_id(options, "eos_token_id", options.eos_token_id)},
                 {"head_dim", args.head_dim},
                 {"hidden_act", hidden_act(args.activation)},
                 {"hidden_size", args.dim},
                 {"intermediate_size", args.hidden_dim},
                 {"max_position_embeddings", args.max_seq_len},
                 {"model_type", qwen3 ? "qwen3" : "llama"},
                 {"num_attention_heads", args.n_heads},
                 {"num_hidden_layers", args.n_layers},
                 {"num_key_value_heads", args.n_kv_heads},
                 {"rms_norm_eps", args.norm_eps},
                 {"rope_parameters", rope},
                 {"rope_scaling", scaling},
                 {"rope_theta", args.rope_theta},
                 {"tie_word_embeddings", args.tied},
                 {"torch_dtype", options.dtype},
                 {"vocab_size", args.vocab_size}});
  config[qwen3 ? "use_sliding_window" : "mlp_bias"] = false;
  return config.dump(2) + "\n";
}

std::string hf_generation_config(const HfExport& options) {
  if (const std::string& imported = options.imported.generation; !imported.empty())
    return json::parse(imported).dump(2) + "\n";
  json config = {{"_from_model_config", true}};
  for (const auto& [key, id] :
       {std::pair("bos_token_id", options.bos_token_id), {"eos_token_id", options.eos_token_id}})
    if (json exported = exported_id(options, key, id); !exported.is_null()) config[key] = std::move(exported);
  return config.size() == 1 ? "" : config.dump(2) + "\n";
}

HuggingFaceFiles hugging_face_files(const config::JobConfig::Model& model, checkpoint::Dtype dtype,
                                    const data::Tokenizer* tokenizer,
                                    const std::filesystem::path& tokenizer_path,
                                    const ImportedSettings& imported, int64_t trained_seq_len) {
  ModelArgs args = config::model_args(model);
  std::vector<std::string> left_out;
  HfExport texts{.dtype = std::string(checkpoint::torch_name(dtype)),
                 .imported = within_vocabulary(imported, args.vocab_size, left_out)};
  const std::optional<int64_t> positions = imported_positions(imported);
  if (positions && !model.args.max_seq_len) args.max_seq_len = std::max(*positions, trained_seq_len);
  HuggingFaceFiles out;
  if (tokenizer != nullptr) {
    out.files = data::tokenizer_files(tokenizer_path);
    texts.bos_token_id = tokenizer->bos_id();
    texts.eos_token_id = tokenizer->eos_id();
    out.remarks = {compare_id(texts.imported, "bos_token_id", texts.bos_token_id),
                   compare_id(texts.imported, "eos_token_id", texts.eos_token_id)};
    std::erase(out.remarks, "");
  }
  if (!left_out.empty())
    out.remarks.push_back(fmt::format("{} is left out: imported, and beyond the model's vocabulary of {}",
                                      fmt::join(left_out, ", "), args.vocab_size));
  if (positions && args.max_seq_len > *positions && !model.args.max_seq_len)
    out.remarks.push_back(
        fmt::format("max_position_embeddings is {}, the length of the sequences in training "
                    "(training.seq_len); {} was imported",
                    args.max_seq_len, *positions));
  if (trained_seq_len > 0 && trained_seq_len < args.max_seq_len)
    out.remarks.push_back(
        fmt::format("max_position_embeddings is {}, {}; the weights were last trained with sequences of {} "
                    "tokens (training.seq_len)",
                    args.max_seq_len,
                    args.max_seq_len == positions ? "as imported" : "the model's (model.args.max_seq_len)",
                    trained_seq_len));
  out.files["config.json"] = hf_config(args, texts);
  if (std::string generation = hf_generation_config(texts); !generation.empty())
    out.files["generation_config.json"] = std::move(generation);
  return out;
}

std::vector<std::string> hf_differences(const ModelArgs& ours, const ModelArgs& config) {
  std::vector<std::string> texts;
  const auto compare = [&](const std::string& name, const auto& here, const auto& there) {
    if (here != there) texts.push_back(fmt::format("{} is {}, but {} in config.json", name, here, there));
  };
  compare("model.name", ours.family, config.family);
  for_each_hf_dimension<ModelArgs>(ours.rope_scaling && config.rope_scaling,
                                   [&](const std::string& key, auto, auto member) {
                                     if (key == "max_seq_len") return;
                                     if constexpr (Chosen<std::decay_t<decltype(ours.*member)>>)
                                       compare(key, text_of(ours.*member), text_of(config.*member));
                                     else
                                       compare(key, ours.*member, config.*member);
                                   });
  return texts;
}

}  // namespace hyperion::hugging_face
