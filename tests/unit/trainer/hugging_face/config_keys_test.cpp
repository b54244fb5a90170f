// Which keys of a config.json are honoured, refused or without effect.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/error_of.h"
#include "trainer/hugging_face/config.h"

namespace hyperion::hugging_face {

using Catch::Contains;
using models::ModelArgs;
using nlohmann::json;

namespace {

json config_of(const std::string& family, const std::string& flavor) {
  return json::parse(hf_config(models::model_args(family, flavor), {}));
}

ModelArgs parsed(const json& config, std::vector<std::string>* warnings = nullptr) {
  return parse_hf_config(config.dump(), "config.json", warnings);
}

json with(json config, const json& fields) {
  config.update(fields);
  return config;
}

}  // namespace

TEST_CASE("the original length beside the RoPE parameters wins over the one inside, as in transformers") {
  const json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  json config = config_of("llama3", "debugmodel");
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) config.erase(key);
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    const auto length = [&](const json& inside, const json& beside) {
      return parsed(with(with(config, {{place, with(llama3, inside)}}), beside)).rope.original_length;
    };
    const json of_64 = {{"original_max_position_embeddings", 64}},
               of_32 = {{"original_max_position_embeddings", 32}};
    CHECK(length(of_64, json::object()) == 64);
    CHECK(length(json::object(), of_64) == 64);
    CHECK(length(of_32, of_64) == 64);
    CHECK(length(json::object(), json::object()) == config["max_position_embeddings"]);
  }
  // An export says it once.
  HfExport options;
  options.imported.config = R"({"original_max_position_embeddings":64})";
  CHECK_FALSE(json::parse(hf_config(models::model_args("llama3", "8B"), options))
                  .contains("original_max_position_embeddings"));
}

TEST_CASE("gpt_oss has windows where layer_types says, and transformers' values where keys are missing") {
  json config = {{"model_type", "gpt_oss"},   {"hidden_size", 64},       {"num_hidden_layers", 4},
                 {"num_attention_heads", 16}, {"intermediate_size", 48}, {"vocab_size", 100},
                 {"num_local_experts", 8}};
  const ModelArgs plain = parsed(config), flavor = models::model_args("gpt_oss", "debugmodel");
  CHECK(plain.attention.n_kv_heads == 8);
  CHECK(plain.attention.head_dim == 64);
  CHECK(plain.attention.qkv_bias);
  CHECK(plain.attention.output_bias);
  CHECK(plain.attention.window == 128);
  CHECK(plain.attention.window_full_every == 2);
  CHECK(plain.experts.hidden_dim == 48);
  CHECK(plain.experts.top_k == 4);
  CHECK(plain.rope.theta == flavor.rope.theta);
  CHECK(plain.rope.factor == flavor.rope.factor);
  CHECK(plain.rope.original_length == flavor.rope.original_length);
  CHECK_FALSE(plain.rope.truncate);
  CHECK(plain.norm_eps == flavor.norm_eps);
  const json full = "full_attention", window = "sliding_attention";
  const auto every = [&](const json& layers) {
    const ModelArgs args = parsed(with(config, {{"layer_types", layers}}));
    return std::pair(args.attention.window, args.attention.window_full_every);
  };
  CHECK(every(json::array({window, full, window, full})) == std::pair<int64_t, int64_t>(128, 2));
  CHECK(every(json::array({window, window, full, window})) == std::pair<int64_t, int64_t>(128, 3));
  CHECK(every(json::array({window, window, window, window})) == std::pair<int64_t, int64_t>(128, 0));
  CHECK(every(json::array({full, full, full, full})) == std::pair<int64_t, int64_t>(0, 0));
  for (const json& wrong :
       {json::array({window, full, full, window}), json::array({full, window, full, window}),
        json::array({window, full}), json::array({1, 2, 3, 4})})
    CHECK_THROWS_WITH(parsed(with(config, {{"layer_types", wrong}})), Contains("layer_types"));
  for (const auto& [key, value] : {std::pair<std::string, json>("swiglu_limit", 6.0),
                                   {"swiglu_alpha", 1.5},
                                   {"experts_per_token", 2},
                                   {"quantization_config", {{"quant_method", "gptq"}}}}) {
    CAPTURE(key);
    CHECK_THROWS_AS(parsed(with(config, {{"num_experts_per_tok", 4}, {key, value}})), Error);
  }
  CHECK_NOTHROW(parsed(with(config, {{"quantization_config", {{"quant_method", "mxfp4"}}}})));
}

TEST_CASE("qwen has windows in its last layers where they are switched on") {
  for (const char* family : {"qwen2", "qwen3"}) {
    json config = config_of(family, "debugmodel");
    config.update({{"sliding_window", 64}, {"max_window_layers", 2}});
    CHECK(parsed(config).attention.window == 0);
    config["use_sliding_window"] = true;
    const ModelArgs args = parsed(config);
    CHECK(args.attention.window == 64);
    CHECK(args.attention.window_first_layer == 2);
    const json back = json::parse(hf_config(args, {}));
    for (const char* key : {"use_sliding_window", "sliding_window", "max_window_layers"})
      CHECK(back[key] == config[key]);
  }
  CHECK_THROWS_WITH(parsed(with(config_of("qwen3", "debugmodel_moe"), {{"use_sliding_window", true}})),
                    Contains("use_sliding_window"));
}

TEST_CASE(
    "mistral has a window in every layer or in none, by transformers' defaults where keys are missing") {
  json config = config_of("llama3", "debugmodel");
  config["model_type"] = "mistral";
  for (const char* key : {"mlp_bias", "rope_scaling", "rope_parameters", "num_key_value_heads"})
    config.erase(key);
  config["num_attention_heads"] = 16;
  const ModelArgs missing = parsed(config);
  CHECK(missing.family == "mistral");
  CHECK(missing.attention.window == 4096);
  CHECK(missing.attention.n_kv_heads == 8);
  CHECK(missing.rope.style == models::RopeStyle::kHalfSplit);
  config["sliding_window"] = nullptr;
  CHECK(parsed(config).attention.window == 0);
  CHECK(json::parse(hf_config(parsed(config), {}))["sliding_window"].is_null());
  config["sliding_window"] = 7;
  const ModelArgs args = parsed(config);
  CHECK(args.attention.window_of(0) == 7);
  CHECK(args.attention.window_of(args.n_layers - 1) == 7);
  CHECK(parsed(json::parse(hf_config(args, {}))).attention.window == 7);
  config["layer_types"] = std::vector<std::string>(static_cast<size_t>(args.n_layers), "sliding_attention");
  CHECK(parsed(config).attention.window == 7);
  config["layer_types"][1] = "full_attention";
  CHECK_THROWS_WITH(parsed(config), Contains("layer_types") && Contains("sliding_attention"));
  ModelArgs some = args;
  some.attention.window_full_every = 2;
  ModelArgs biased = args;
  biased.attention.qkv_bias = biased.attention.output_bias = true;
  CHECK_THROWS_WITH(hf_config(biased, {}), Contains("mistral model has none"));
  config["layer_types"][1] = "sliding_attention";
  config["attention_bias"] = true;
  CHECK_THROWS_WITH(parsed(config), Contains("Mistral's attention has no bias"));
  CHECK_THROWS_WITH(hf_config(some, {}), Contains("between others"));
}

TEST_CASE("YaRN of models without latent attention is read and written with its rounding") {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 32.0},
                     {"original_max_position_embeddings", 4096},
                     {"truncate", false}};
  json config = with(config_of("qwen3", "0.6B"), {{"rope_scaling", yarn}, {"rope_parameters", yarn}});
  const ModelArgs args = parsed(config);
  CHECK(args.rope.yarn);
  CHECK_FALSE(args.rope.truncate);
  CHECK(args.rope.factor == 32);
  const json written = json::parse(hf_config(args, {}));
  CHECK(written["rope_scaling"]["truncate"] == false);
  CHECK(hf_differences(args, parsed(written)).empty());
  CHECK(hf_differences(models::model_args("qwen3", "0.6B"), args) !=
        std::vector<std::string>{});  // no silent loss of YaRN
  config["rope_scaling"]["attention_factor"] = 1.2;
  CHECK_THROWS_WITH(parsed(config), Contains("attention_factor"));
}

TEST_CASE("an empty rope_scaling leaves rope_parameters, and parameters for kinds of blocks are refused") {
  json config = config_of("llama3", "8B");
  REQUIRE(parsed(config).rope.scaling);
  CHECK(parsed(with(config, {{"rope_scaling", json::object()}})).rope.factor == 8);
  const json nested = {{"full_attention", {{"rope_theta", 1e4}}}, {"rope_type", "llama3"}};
  CHECK_THROWS_WITH(parsed(with(config, {{"rope_scaling", nested}})), Contains("full_attention"));
}

TEST_CASE(
    "a key that changes what a model computes is refused by name unless it has the value of no effect") {
  for (const auto& [family, flavor] : {std::pair("llama3", "debugmodel"),
                                       {"qwen3", "debugmodel"},
                                       {"deepseek_v3", "671B"},
                                       {"llama4", "debugmodel"}}) {
    const json config = config_of(family, flavor);
    CAPTURE(family);
    for (const json& changed : std::vector<json>{{{"is_causal", false}},
                                                 {{"attn_logit_softcapping", 50.0}},
                                                 {{"final_logit_softcapping", 30.0}},
                                                 {{"query_pre_attn_scalar", 256}},
                                                 {{"attention_multiplier", 0.5}},
                                                 {{"embedding_multiplier", 12.0}},
                                                 {{"residual_multiplier", 0.22}},
                                                 {{"logits_scaling", 8.0}},
                                                 {{"logit_scale", 0.0625}},
                                                 {{"lm_head_bias", true}},
                                                 {{"attention_bias", true}},
                                                 {{"mlp_bias", true}},
                                                 {{"hidden_activation", "gelu"}},
                                                 {{"partial_rotary_factor", 0.5}},
                                                 {{"attention_dropout", 0.1}},
                                                 {{"resid_pdrop", 0.1}},
                                                 {{"per_layer_config", {{"0", {{"head_dim", 4}}}}}},
                                                 {{"use_bidirectional_attention", true}},
                                                 {{"layer_types", {"sliding_attention"}}}}) {
      const std::string key = changed.begin().key();
      if (family == std::string("llama4") && key == "mlp_bias") continue;
      if (family != std::string("deepseek_v3") && key == "attention_bias") continue;
      CHECK_THROWS_WITH(parsed(with(config, changed)), Contains("config.json." + key));
    }
    CHECK_NOTHROW(parsed(with(config, {{"is_causal", true},
                                       {"final_logit_softcapping", nullptr},
                                       {"logits_scaling", 1},
                                       {"embedding_multiplier", 1.0},
                                       {"resid_pdrop", 0.0},
                                       {"pretraining_tp", 2},
                                       {"_name_or_path", "x"}})));
  }
  const json llama = config_of("llama3", "debugmodel");
  CHECK_THROWS_WITH(parsed(with(llama, {{"sliding_window", 8}})), Contains("sliding_window is 8"));
  CHECK_NOTHROW(parsed(with(llama, {{"sliding_window", 8}, {"use_sliding_window", false}})));
  CHECK_THROWS_WITH(parsed(with(llama, {{"num_experts", 8}})), Contains("num_experts is 8"));
  const json moe = config_of("qwen3", "debugmodel_moe");
  CHECK_THROWS_WITH(parsed(with(moe, {{"num_local_experts", 3}})), Contains("num_local_experts is 3"));
  CHECK_THROWS_WITH(parsed(with(moe, {{"shared_expert_intermediate_size", 8}})),
                    Contains("shared_expert_intermediate_size"));
  const json deepseek = config_of("deepseek_v3", "671B");
  CHECK_THROWS_WITH(parsed(with(deepseek, {{"head_dim", 128}})), Contains("the value of qk_rope_head_dim"));
  CHECK_NOTHROW(parsed(with(deepseek, {{"qk_head_dim", 192}})));
  CHECK_THROWS_WITH(parsed(with(deepseek, {{"qk_head_dim", 64}})),
                    Contains("qk_head_dim is 64") && Contains("qk_nope_head_dim + qk_rope_head_dim"));
}

TEST_CASE("a key of which nothing is known is named, and one with two values") {
  std::vector<std::string> warnings;
  const json config = config_of("llama3", "8B");
  parsed(config, &warnings);
  CHECK(warnings.empty());
  parsed(with(config,
              {{"custom", 1}, {"kv_heads_of_mine", 2}, {"unknown_but_null", nullptr}, {"sep_token_id", 3}}),
         &warnings);
  CHECK(warnings ==
        std::vector<std::string>{
            "config.json: keys that are not known here, and have no effect: custom, kv_heads_of_mine"});
  json twice = with(config, {{"rope_theta", 1e4}, {"rope_scaling", nullptr}});
  twice["rope_parameters"]["rope_theta"] = 2e4;
  CHECK(parsed(twice, &warnings).rope.theta == 2e4);
  CHECK(warnings ==
        std::vector<std::string>{"config.json: rope_parameters.rope_theta is 20000.0, which counts, but "
                                 "rope_theta is 10000.0"});
  twice = config;
  twice["rope_parameters"]["factor"] = 4.0;
  CHECK(parsed(twice, &warnings).rope.factor == 8);
  CHECK(warnings.size() == 1);
}

TEST_CASE("a number that JSON does not have is named in plain words") {
  for (const char* number : {"NaN", "Infinity", "-Infinity"})
    CHECK_THROWS_WITH(parse_hf_config(fmt::format(R"({{"rms_norm_eps": {}}})", number), "c"),
                      Contains("c: is not valid JSON: line 1, column ") &&
                          Contains("JSON has no NaN, Infinity or None") && !Contains("json.exception"));
  CHECK_THROWS_WITH(parse_hf_config(R"({"rope_theta": 1e4, "rope_theta": 2e4})", "c"),
                    Contains("key \"rope_theta\" twice"));
}

TEST_CASE("the export of a model whose experts were balanced says that their biases are left out") {
  config::JobConfig::Model model;
  model.name = "qwen3";
  model.flavor = "debugmodel_moe";
  const auto remarks = [&](double coefficient) {
    model.args.load_balance_coeff = coefficient;
    return hugging_face_files(model, checkpoint::Dtype::kFloat32, nullptr, {}, {}, 0).remarks;
  };
  CHECK(remarks(0).empty());
  REQUIRE(remarks(1e-3).size() == 1);
  CHECK_THAT(remarks(1e-3).front(),
             Contains("expert_bias are left out") && Contains("model.args.load_balance_coeff = 0.001"));
}

TEST_CASE("the loss of the routers' balance is in config.json if transformers' loss is the same") {
  const auto model = [](int64_t layers, double coefficient) {
    config::JobConfig::Model model;
    model.name = "qwen3";
    model.flavor = "debugmodel_moe";
    model.args.n_layers = layers;
    model.args.global_aux_loss_coeff = coefficient;
    return model;
  };
  const auto exported = [&](int64_t layers, double coefficient, const std::string& imported = "") {
    const HuggingFaceFiles out = hugging_face_files(model(layers, coefficient), checkpoint::Dtype::kFloat32,
                                                    nullptr, {}, {.config = imported, .generation = {}}, 0);
    return std::pair(json::parse(out.files.at("config.json")), out.remarks);
  };
  const auto [one, no_remarks] = exported(1, 0.01);
  CHECK((one.at("router_aux_loss_coef") == 0.01 && one.at("output_router_logits") == true));
  CHECK(no_remarks.empty());
  CHECK(parsed(one).experts.losses.global == 0.01);
  CHECK(parsed(with(one, {{"router_aux_loss_coef", nullptr}})).experts.losses.global == 0.001);
  CHECK(parsed(with(one, {{"router_aux_loss_coef", 0}})).experts.losses.global == 0);
  CHECK(parsed(with(one, {{"output_router_logits", false}})).experts.losses.global == 0);
  CHECK_THROWS_WITH(parsed(with(one, {{"router_aux_loss_coef", -1}})), Contains("router_aux_loss_coef"));

  const std::string imported = R"({"output_router_logits":true,"router_aux_loss_coef":0.5})";
  const auto [several, remarks] = exported(2, 0.01, imported);
  CHECK_FALSE((several.contains("router_aux_loss_coef") || several.contains("output_router_logits")));
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks.front(), Contains("router_aux_loss_coef is left out"));
  CHECK(exported(2, 0, imported).first.at("router_aux_loss_coef") == 0.5);  // as imported
  CHECK(exported(1, 0, imported).first.at("output_router_logits") == false);
  CHECK_FALSE(exported(1, 0).first.contains("output_router_logits"));
  std::vector<std::string> warnings;
  CHECK(parsed(exported(2, 0, imported).first, &warnings).experts.losses.global == 0);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings.front(), Contains("router_aux_loss_coef is not taken over") && Contains("2 layers"));
}

}  // namespace hyperion::hugging_face
