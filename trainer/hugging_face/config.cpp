#include "trainer/hugging_face/config.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "models/args/clamped_gate.h"
#include "models/args/model_args.h"
#include "trainer/hugging_face/names.h"

namespace hyperion::hugging_face {
namespace {

using models::ModelArgs, models::ModelPart;
using nlohmann::json;

constexpr double kLatentNormEps = 1e-6;  // transformers' deepseek_v3

// hidden_act of config.json.
constexpr std::pair<models::Activation, std::string_view> kHiddenActs[] = {
#define ACTIVATION(name, text, hidden_act) {models::Activation::k##name, hidden_act},
#include "models/args/activations.def"
};
std::string_view hidden_act(models::Activation activation) {
  return std::ranges::find(kHiddenActs, activation, &std::pair<models::Activation, std::string_view>::first)
      ->second;
}

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

}  // namespace

std::optional<models::DimensionProblem> export_problem(const ModelArgs& args) {
  const bool qwen3 = args.family == "qwen3", deepseek = args.family == "deepseek_v3",
             llama4 = args.family == "llama4", mistral = args.family == "mistral",
             qwen2 = args.family == "qwen2", gpt_oss = args.family == "gpt_oss",
             experts = args.experts.are_present();
  std::optional<models::DimensionProblem> problem;
  // Keeps the first problem: `key` of [model.args] has a value that transformers' model does not support.
  const auto refuse_if = [&](bool wrong, std::vector<std::string> keys, const std::string& text) {
    if (wrong && !problem) problem = models::DimensionProblem{std::move(keys), text};
  };
  const auto require = [&](const char* key, const auto& value, const auto& expected) {
    refuse_if(value != expected, {key},
              fmt::format("{} is {}, and transformers' {} model has {}", key, value, args.family, expected));
  };
  refuse_if(args.attention.qk_norm != qwen3, {"qk_norm"},
            fmt::format("qk_norm is {}, and transformers has no {} model {} it", args.attention.qk_norm,
                        args.family, args.attention.qk_norm ? "with" : "without"));
  refuse_if(mistral && (args.attention.qkv_bias || args.attention.output_bias), {"qkv_bias", "output_bias"},
            "attention has biases, and transformers' mistral model has none");
  const bool biased = args.attention.qkv_bias;
  refuse_if(args.attention.output_bias != (qwen2 ? false : biased) || (qwen2 && !biased),
            {"qkv_bias", "output_bias"},
            fmt::format("qkv_bias is {} and output_bias is {}, and transformers' {} model has {}", biased,
                        args.attention.output_bias, args.family,
                        qwen2 ? "biases of queries, keys and values alone"
                              : "biases of queries, keys, values and the output together, or none"));
  refuse_if(args.family == "llama3" && args.dim % args.attention.n_heads != 0, {"n_heads", "dim"},
            fmt::format("n_heads {} does not divide dim {}, and transformers refuses such a llama model",
                        args.attention.n_heads, args.dim));
  refuse_if((args.latent.is_present()) != deepseek, {"kv_lora_rank"},
            fmt::format("kv_lora_rank is {}, and transformers has no such {} model", args.latent.kv_lora_rank,
                        args.family));
  refuse_if(args.attention.sinks != gpt_oss, {"sinks"},
            fmt::format("sinks is {}, and transformers has no {} model {} them", args.attention.sinks,
                        args.family, gpt_oss ? "without" : "with"));
  const bool qwen = qwen2 || (qwen3 && !experts);
  refuse_if(args.attention.window > 0 && !mistral && !gpt_oss && !qwen, {"sliding_window_size"},
            fmt::format("sliding_window_size is {}, and transformers' {} model has no window here",
                        args.attention.window, args.family));
  refuse_if(
      args.attention.window > 0 && !qwen && args.attention.window_first_layer > 0,
      {"sliding_window_first_layer"},
      fmt::format("the first layers have no window, and transformers' {} model is not read so", args.family));
  refuse_if(args.attention.window > 0 && !gpt_oss && args.attention.window_full_every > 0,
            {"full_attention_every"},
            fmt::format("some layers between others have no window, and transformers' {} model is not so",
                        args.family));
  refuse_if(
      args.rope.yarn && !deepseek && args.rope.mscale != 1, {"rope_mscale"},
      fmt::format("rope_mscale is {}, and transformers' {} model has 1", args.rope.mscale, args.family));
  refuse_if(args.rope.yarn && deepseek && args.rope.mscale == 0, {"rope_mscale"},
            "rope_mscale is 0, and transformers then scales cosines and sines, which are not scaled here");
  refuse_if(args.rope.scaling && !args.rope.yarn && deepseek, {"rope_scaling"},
            "rope_scaling is true, and transformers' deepseek_v3 model has YaRN (rope_yarn) instead");
  refuse_if(experts ? args.family == "llama3" || mistral || qwen2 : deepseek || llama4 || gpt_oss,
            {"num_experts"},
            fmt::format("num_experts is {}, and transformers has no such {} model", args.experts.num_experts,
                        args.family));
  if (const std::string name = without_hf_tensor(models::describe_model(args)); !name.empty())
    refuse_if(true, {}, fmt::format("transformers' {} model has no {}", args.family, name));
  if (!experts) return problem;
  const auto score = deepseek || llama4 ? models::ScoreFunction::kSigmoid : models::ScoreFunction::kSoftmax;
  refuse_if(args.experts.score_func != score, {"score_func"},
            fmt::format("score_func is \"{}\", and transformers' {} model has \"{}\"",
                        text_of(args.experts.score_func), args.family, text_of(score)));
  require("score_before_experts", args.experts.score_before_experts, llama4);
  if (deepseek) {
    require("moe_every", args.experts.moe_every, 1);
    refuse_if(args.experts.num_shared_experts == 0, {"num_shared_experts"},
              "num_shared_experts is 0, and transformers' deepseek_v3 model has at least 1");
    return problem;
  }
  require("num_shared_experts", args.experts.num_shared_experts, llama4 ? 1 : 0);
  require("expert_groups", args.experts.expert_groups, 0);
  require("route_scale", args.experts.route_scale, 1.0);
  if (llama4) {
    require("route_norm", args.experts.route_norm, false);
    require("n_dense_layers", args.experts.n_dense_layers, 0);
  }
  if (gpt_oss) {
    require("route_norm", args.experts.route_norm, true);
    require("n_dense_layers", args.experts.n_dense_layers, 0);
    require("moe_every", args.experts.moe_every, 1);
  }
  return problem;
}

namespace {

// Returns the fields that only MoE models have.
json experts_config(const ModelArgs& args) {
  std::vector<int64_t> with_experts, dense;
  for (int64_t layer = 0; layer < args.n_layers; ++layer)
    if (args.experts.are_in(layer)) with_experts.push_back(layer);
  for (int64_t layer = 0; layer < std::min(args.experts.n_dense_layers, args.n_layers); ++layer)
    dense.push_back(layer);
  const auto layers = static_cast<size_t>(args.n_layers);
  if (args.family == "llama4")
    return {{"attn_temperature_tuning", false},
            {"intermediate_size", args.experts.hidden_dim},
            {"intermediate_size_mlp", args.dense.hidden_dim},
            {"interleave_moe_layer_step", args.experts.moe_every},
            {"layer_types", std::vector<std::string>(layers, "full_attention")},
            {"moe_layers", with_experts},
            {"no_rope_layers", std::vector<int>(layers, 1)},
            {"num_experts_per_tok", args.experts.top_k},
            {"num_local_experts", args.experts.num_experts},
            {"use_qk_norm", false}};
  if (args.family == "gpt_oss")
    return {{"experts_per_token", args.experts.top_k},
            {"initial_context_length", args.rope.original_length},
            {"intermediate_size", args.experts.hidden_dim},
            {"num_experts_per_tok", args.experts.top_k},
            {"num_local_experts", args.experts.num_experts},
            {"swiglu_alpha", models::kGateSlope},
            {"swiglu_limit", models::kGateLimit}};
  if (args.family == "qwen3")
    return {{"decoder_sparse_step", args.experts.moe_every},    {"mlp_only_layers", dense},
            {"moe_intermediate_size", args.experts.hidden_dim}, {"norm_topk_prob", args.experts.route_norm},
            {"num_experts", args.experts.num_experts},          {"num_experts_per_tok", args.experts.top_k}};
  return {{"first_k_dense_replace", args.experts.n_dense_layers},
          {"kv_lora_rank", args.latent.kv_lora_rank},
          {"moe_intermediate_size", args.experts.hidden_dim},
          {"moe_layer_freq", 1},
          {"n_group", std::max<int64_t>(args.experts.expert_groups, 1)},
          {"n_routed_experts", args.experts.num_experts},
          {"n_shared_experts", args.experts.num_shared_experts},
          {"norm_topk_prob", args.experts.route_norm},
          {"num_experts_per_tok", args.experts.top_k},
          {"num_nextn_predict_layers", 0},
          {"q_lora_rank", args.latent.q_lora_rank > 0 ? json(args.latent.q_lora_rank) : json()},
          {"qk_nope_head_dim", args.latent.qk_nope_head_dim},
          {"qk_rope_head_dim", args.latent.qk_rope_head_dim},
          {"rope_interleave", true},
          {"routed_scaling_factor", args.experts.route_scale},
          {"scoring_func", "sigmoid"},
          {"topk_group", args.experts.expert_groups > 0 ? args.experts.limited_groups : 1},
          {"topk_method", "noaux_tc"},
          {"v_head_dim", args.latent.v_head_dim}};
}

// transformers averages over all layers before it multiplies, so its loss is ours if one block has experts.
bool exports_router_loss(const ModelArgs& args) {
  return (args.family == "qwen3" || args.family == "gpt_oss") && args.experts.blocks(args.n_layers) == 1;
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

std::vector<std::string> layer_types(const ModelArgs& args) {
  std::vector<std::string> types;
  for (int64_t layer = 0; layer < args.n_layers; ++layer)
    types.emplace_back(args.attention.has_window(layer) ? "sliding_attention" : "full_attention");
  return types;
}

struct HfModel {
  std::string_view type, architecture;
};
HfModel hf_model_of(const ModelArgs& args) {
  if (args.family == "deepseek_v3") return {"deepseek_v3", "DeepseekV3ForCausalLM"};
  if (args.family == "llama4") return {"llama4_text", "Llama4ForCausalLM"};
  if (args.family == "llama3") return {"llama", "LlamaForCausalLM"};
  if (args.family == "mistral") return {"mistral", "MistralForCausalLM"};
  if (args.family == "qwen2") return {"qwen2", "Qwen2ForCausalLM"};
  if (args.family == "gpt_oss") return {"gpt_oss", "GptOssForCausalLM"};
  return args.experts.are_present() ? HfModel{"qwen3_moe", "Qwen3MoeForCausalLM"}
                                    : HfModel{"qwen3", "Qwen3ForCausalLM"};
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
  const HfModel model = hf_model_of(args);
  const json scaling = rope_scaling_config(args);
  json rope = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  rope["rope_theta"] = args.rope.theta;
  json config = {{"initializer_range", 0.02}, {"use_cache", true}};
  const bool qwen = args.family == "qwen2" || args.family == "qwen3";  // may have sliding windows
  if (qwen) config["sliding_window"] = nullptr;
  config.update(imported_config(options));
  // These keys describe the imported files only, or duplicate keys that are set below.
  for (const char* key : {"quantization_config", "original_max_position_embeddings", "partial_rotary_factor",
                          "num_local_experts", "num_mtp_layers", "qk_head_dim"})
    config.erase(key);
  const bool gpt_oss = args.family == "gpt_oss";
  if (gpt_oss || config.contains("layer_types")) config["layer_types"] = layer_types(args);
  if (gpt_oss || args.family == "mistral")
    config["sliding_window"] = args.attention.window > 0 ? json(args.attention.window) : json();
  config.update(
      {{"architectures", json::array({std::string(model.architecture)})},
       {"attention_bias", args.attention.output_bias},
       {"attention_dropout", 0.0},
       {"bos_token_id", exported_id(options, "bos_token_id", options.bos_token_id)},
       {"dtype", options.dtype},
       {"eos_token_id", exported_id(options, "eos_token_id", options.eos_token_id)},
       {"head_dim", args.latent.is_present() ? args.latent.qk_rope_head_dim : args.attention.head_dim},
       {"hidden_act", hidden_act(args.activation)},
       {"hidden_size", args.dim},
       {"intermediate_size", args.dense.hidden_dim},
       {"max_position_embeddings", args.max_seq_len},
       {"model_type", std::string(model.type)},
       {"num_attention_heads", args.attention.n_heads},
       {"num_hidden_layers", args.n_layers},
       {"num_key_value_heads", args.attention.n_kv_heads},
       {"rms_norm_eps", args.norm_eps},
       {"rope_parameters", rope},
       {"rope_scaling", scaling},
       {"rope_theta", args.rope.theta},
       {"tie_word_embeddings", args.tied},
       {"torch_dtype", options.dtype},
       {"vocab_size", args.vocab_size}});
  if (qwen) config["use_sliding_window"] = args.attention.window > 0;
  if (qwen && args.attention.window > 0) {
    config["sliding_window"] = args.attention.window;
    config["max_window_layers"] = args.attention.window_first_layer;
  }
  if (args.family == "qwen2" || args.family == "mistral") config.erase("attention_bias");
  if (args.family == "llama3") config["mlp_bias"] = false;
  if (args.experts.are_present()) {
    config.update(experts_config(args));
    set_router_loss(args, config);
  }
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
  if (args.experts.are_present() && args.experts.load_balance_coeff > 0 && args.family != "deepseek_v3")
    out.remarks.push_back(
        fmt::format("layers.*.moe.expert_bias are left out: transformers' {} model has no biases of experts, "
                    "which model.args.load_balance_coeff = {} has moved, so it may choose other experts",
                    args.family, args.experts.load_balance_coeff));
  if (args.experts.losses.global > 0 && !exports_router_loss(args))
    out.remarks.push_back(
        "router_aux_loss_coef is left out: transformers has no loss equal to "
        "model.args.global_aux_loss_coeff, "
        "which is of each block with experts, but in a qwen3_moe or gpt_oss model with one such block");
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
