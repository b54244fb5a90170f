#include "trainer/hugging_face/config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "models/args/model_args.h"
#include "trainer/hugging_face/config_keys.h"
#include "trainer/hugging_face/model_types.h"
#include "trainer/hugging_face/names.h"

namespace hyperion::hugging_face {
namespace {

using models::ModelArgs, models::ModelPart;
using nlohmann::json;

constexpr double kLatentNormEps = 1e-6;  // transformers' deepseek_v3

json imported_config(const HfExport& options) {
  return options.imported.config.empty() ? json::object() : json::parse(options.imported.config);
}

// The id or ids of config.json: as imported, else the tokenizer's, else null.
json exported_id(const HfExport& options, const char* key, const std::optional<int64_t>& of_tokenizer) {
  json id = imported_config(options).value(key, json());
  return id.is_null() && of_tokenizer ? json(*of_tokenizer) : id;
}

// Returns "" if the imported ids equal the tokenizer's.
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

// The first reason why transformers has no such model.
struct ExportProblem {
  template <typename... Values>
  void refuse_if(bool wrong, std::vector<std::string> keys, fmt::format_string<const Values&...> text,
                 const Values&... values) {
    if (wrong && !first) first = models::DimensionProblem{std::move(keys), fmt::format(text, values...)};
  }
  std::optional<models::DimensionProblem> first{};
};

void check_attention(const ModelArgs& args, const ModelType& type, ExportProblem& problem) {
  const models::AttentionArgs& attention = args.attention;
  const bool qkv = attention.qkv_bias, output = attention.output_bias;
  problem.refuse_if(attention.qk_norm != type.qk_norm, {"qk_norm"},
                    "qk_norm is {}, and transformers has no {} model {} it", attention.qk_norm, args.family,
                    attention.qk_norm ? "with" : "without");
  problem.refuse_if(type.biases == Biases::kNone && (qkv || output), {"qkv_bias", "output_bias"},
                    "attention has biases, and transformers' {} model has none", args.family);
  const bool qkv_alone = type.biases == Biases::kQkv;
  problem.refuse_if(qkv_alone ? !qkv || output : output != qkv, {"qkv_bias", "output_bias"},
                    "qkv_bias is {} and output_bias is {}, and transformers' {} model has {}", qkv, output,
                    args.family,
                    qkv_alone ? "biases of queries, keys and values alone"
                              : "biases of queries, keys, values and the output together, or none");
  problem.refuse_if(type.heads_divide_width && args.dim % attention.n_heads != 0, {"n_heads", "dim"},
                    "n_heads {} does not divide dim {}, and transformers refuses such a {} model",
                    attention.n_heads, args.dim, type.name);
  problem.refuse_if(args.latent.is_present() != type.latent, {"kv_lora_rank"},
                    "kv_lora_rank is {}, and transformers has no such {} model", args.latent.kv_lora_rank,
                    args.family);
  problem.refuse_if(attention.sinks != type.sinks, {"sinks"},
                    "sinks is {}, and transformers has no {} model {} them", attention.sinks, args.family,
                    type.sinks ? "without" : "with");
  if (attention.window <= 0) return;
  problem.refuse_if(type.windows == Windows::kNone, {"sliding_window_size"},
                    "sliding_window_size is {}, and transformers' {} model has no window here",
                    attention.window, args.family);
  problem.refuse_if(type.windows != Windows::kLastLayers && attention.window_first_layer > 0,
                    {"sliding_window_first_layer"},
                    "the first layers have no window, and transformers' {} model is not read so",
                    args.family);
  problem.refuse_if(
      type.windows != Windows::kPattern && attention.window_full_every > 0, {"full_attention_every"},
      "some layers between others have no window, and transformers' {} model is not so", args.family);
}

void check_rope(const ModelArgs& args, const ModelType& type, ExportProblem& problem) {
  const models::RopeArgs& rope = args.rope;
  problem.refuse_if(rope.yarn && !type.latent && rope.mscale != 1, {"rope_mscale"},
                    "rope_mscale is {}, and transformers' {} model has 1", rope.mscale, args.family);
  problem.refuse_if(
      rope.yarn && type.latent && rope.mscale == 0, {"rope_mscale"},
      "rope_mscale is 0, and transformers then scales cosines and sines, which are not scaled here");
  problem.refuse_if(rope.scaling && !rope.yarn && type.latent, {"rope_scaling"},
                    "rope_scaling is true, and transformers' {} model has YaRN (rope_yarn) instead",
                    args.family);
}

void check_experts(const ModelArgs& args, const ExpertRules& rules, ExportProblem& problem) {
  const models::ExpertArgs& experts = args.experts;
  const auto require = [&](const char* key, const auto& value, const auto& expected) {
    problem.refuse_if(value != expected, {key}, "{} is {}, and transformers' {} model has {}", key, value,
                      args.family, expected);
  };
  problem.refuse_if(experts.score_func != rules.score_func, {"score_func"},
                    "score_func is \"{}\", and transformers' {} model has \"{}\"",
                    text_of(experts.score_func), args.family, text_of(rules.score_func));
  require("score_before_experts", experts.score_before_experts, rules.score_before_experts);
  if (rules.shared_experts) require("num_shared_experts", experts.num_shared_experts, *rules.shared_experts);
  if (!rules.may_group) {
    require("expert_groups", experts.expert_groups, 0);
    require("route_scale", experts.route_scale, 1.0);
  }
  if (rules.route_norm) require("route_norm", experts.route_norm, *rules.route_norm);
  if (!rules.may_begin_dense) require("n_dense_layers", experts.n_dense_layers, 0);
  if (!rules.may_alternate) require("moe_every", experts.moe_every, 1);
  problem.refuse_if(!rules.shared_experts && experts.num_shared_experts == 0, {"num_shared_experts"},
                    "num_shared_experts is 0, and transformers' {} model has at least 1", args.family);
}

}  // namespace

std::optional<models::DimensionProblem> export_problem(const ModelArgs& args) {
  const ModelType& type = model_type_of(args);
  ExportProblem problem;
  check_attention(args, type, problem);
  check_rope(args, type, problem);
  problem.refuse_if(args.experts.are_present() != type.experts.are_present, {"num_experts"},
                    "num_experts is {}, and transformers has no such {} model", args.experts.num_experts,
                    args.family);
  const std::string missing = without_hf_tensor(models::describe_model(args));
  problem.refuse_if(!missing.empty(), {}, "transformers' {} model has no {}", args.family, missing);
  if (args.experts.are_present()) check_experts(args, type.experts, problem);
  return problem.first;
}

namespace {

// transformers averages over all layers before it multiplies, so its loss is ours if one block has experts.
bool exports_router_loss(const ModelArgs& args) {
  return model_type_of(args).experts.router_loss && args.experts.blocks(args.n_layers) == 1;
}

std::vector<std::string_view> types_with_router_loss() {
  std::vector<std::string_view> names;
  for (const ModelType& type : model_types())
    if (type.experts.router_loss) names.push_back(type.name);
  return names;
}

void set_router_loss(const ModelArgs& args, json& config) {
  const double coefficient = args.experts.losses.global;
  if (exports_router_loss(args)) {
    if (coefficient > 0) config["router_aux_loss_coef"] = coefficient;
    if (coefficient > 0 || config.contains("output_router_logits"))
      config["output_router_logits"] = coefficient > 0;
  } else if (coefficient > 0) {
    config.erase("router_aux_loss_coef");
    config.erase("output_router_logits");
  }
}

json rope_scaling_config(const ModelArgs& args) {
  if (models::scales_by_yarn(args.rope, args.max_seq_len) && !args.latent.is_present())
    return {{"rope_type", "yarn"},
            {"beta_fast", args.rope.beta_fast},
            {"beta_slow", args.rope.beta_slow},
            {"factor", args.rope.factor},
            {"original_max_position_embeddings", args.rope.original_length},
            {"truncate", args.rope.truncate}};
  if (models::scales_by_yarn(args.rope, args.max_seq_len))
    return {{"rope_type", "yarn"},
            {"beta_fast", args.rope.beta_fast},
            {"beta_slow", args.rope.beta_slow},
            {"factor", args.rope.factor},
            {"mscale", args.rope.mscale},
            {"mscale_all_dim", args.rope.mscale},
            {"original_max_position_embeddings", args.rope.original_length}};
  if (args.rope.scaling)
    return {{"rope_type", "llama3"},
            {"factor", args.rope.factor},
            {"low_freq_factor", args.rope.low_freq_factor},
            {"high_freq_factor", args.rope.high_freq_factor},
            {"original_max_position_embeddings", args.rope.original_length}};
  return nullptr;
}

}  // namespace

std::string hf_config(const ModelArgs& args, const HfExport& options) {
  if (const auto problem = export_problem(args))
    throw_config("the model cannot be exported to Hugging Face: {}", problem->text);
  const ModelType& type = model_type_of(args);
  const json scaling = rope_scaling_config(args);
  json rope = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  rope["rope_theta"] = args.rope.theta;
  json config = {{"initializer_range", 0.02}, {"use_cache", true}};
  config.update(imported_config(options));
  // These keys describe the imported files only, or duplicate keys that are set below.
  for (const char* key : {"quantization_config", "original_max_position_embeddings", "partial_rotary_factor",
                          "num_local_experts", "num_mtp_layers", "qk_head_dim"})
    config.erase(key);
  if (config.contains("layer_types")) config["layer_types"] = layer_types(args);
  config.update({{"architectures", json::array({std::string(type.architecture)})},
                 {"attention_bias", args.attention.output_bias},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", exported_id(options, "bos_token_id", options.bos_token_id)},
                 {"dtype", options.dtype},
                 {"eos_token_id", exported_id(options, "eos_token_id", options.eos_token_id)},
                 {"head_dim", args.attention.head_dim},
                 {"model_type", std::string(type.name)},
                 {"num_key_value_heads", args.attention.n_kv_heads},
                 {"rope_parameters", rope},
                 {"rope_scaling", scaling},
                 {"rope_theta", args.rope.theta},
                 {"torch_dtype", options.dtype}});
  if (type.biases != Biases::kAllOrNone) config.erase("attention_bias");
  write_fields(args, type.name, config);
  type.write(args, config);
  if (args.experts.are_present()) set_router_loss(args, config);
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
  if (trained_seq_len > 0) args = models::with_yarn_decided(std::move(args), trained_seq_len);
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
  if (args.experts.are_present() && args.experts.load_balance_coeff > 0 &&
      !model_type_of(args).experts.balance_bias)
    out.remarks.push_back(
        fmt::format("layers.*.moe.expert_bias are left out: transformers' {} model has no biases of experts, "
                    "which model.args.load_balance_coeff = {} has moved, so it may choose other experts",
                    args.family, args.experts.load_balance_coeff));
  if (args.experts.losses.global > 0 && !exports_router_loss(args))
    out.remarks.push_back(fmt::format(
        "router_aux_loss_coef is left out: transformers has no loss equal to "
        "model.args.global_aux_loss_coeff, which is of each block with experts, but in a {} model "
        "with one such block",
        fmt::join(types_with_router_loss(), " or ")));
  if (args.latent.is_present() && args.norm_eps != kLatentNormEps)
    out.remarks.push_back(
        fmt::format("model.args.norm_eps is {}, but transformers' norms of the latents have {} whatever "
                    "rms_norm_eps is: its logits differ a little",
                    args.norm_eps, kLatentNormEps));
  out.files["config.json"] = hf_config(args, texts);
  if (std::string generation = hf_generation_config(texts); !generation.empty())
    out.files["generation_config.json"] = std::move(generation);
  return out;
}

bool describes(const ModelArgs& args, ModelPart part) {
  if (part == ModelPart::kTraining || part == ModelPart::kBalance) return false;
  if (part == ModelPart::kScaling && args.rope.yarn) return false;
  if (part == ModelPart::kYarnChoice) return args.latent.is_present() || args.rope.yarn;
  return models::has_part(args, part);
}

std::vector<std::string> hf_differences(const ModelArgs& ours, const ModelArgs& config) {
  std::vector<std::string> texts;
  const auto compare = [&](const std::string& name, const auto& value, const auto& in_config) {
    if (value != in_config)
      texts.push_back(fmt::format("{} is {}, but {} in config.json", name, value, in_config));
  };
  compare("model.name", ours.family, config.family);
  // RoPE scaling of only one model counts as one difference; a part of only one model differs in all its
  // dimensions.
  ModelArgs here = ours, there = config;
  here.rope.scaling = there.rope.scaling = ours.rope.scaling && config.rope.scaling;
  here.rope.yarn = there.rope.yarn = ours.rope.yarn && config.rope.yarn;
  // Latent attention has YaRN in longer sequences alone.
  const bool too_short = !ours.rope.yarn && config.rope.yarn && config.latent.is_present();
  models::for_each_dimension(
      [&](const std::string& key, ModelPart part, models::ResumeCheck, auto, auto member) {
        const bool described = describes(here, part) || describes(there, part);
        if ((part != ModelPart::kYarnChoice && !described) || key == "max_seq_len" ||
            (too_short && (key == "rope_yarn" || key == "rope_scaling")))
          return;
        if constexpr (EnumWithTexts<std::decay_t<decltype(member(ours))>>)
          compare(key, text_of(member(ours)), text_of(member(config)));
        else
          compare(key, member(ours), member(config));
      });
  return texts;
}

}  // namespace hyperion::hugging_face
