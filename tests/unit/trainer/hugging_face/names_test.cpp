#include "trainer/hugging_face/names.h"

#include <set>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "models/flavors/registry.h"
#include "models/transformer.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

using Catch::Contains;
using models::ModelArgs;

namespace {

const char* const kLlama = R"({"model_type": "llama", "hidden_size": 48, "intermediate_size": 100,
  "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 1009,
  "rms_norm_eps": 1e-05, "max_position_embeddings": 4096)";

ModelArgs llama(const std::string& more) {
  return parse_hf_config(kLlama + more + "}", "config.json");
}
ModelArgs changed(const std::string& field, const nlohmann::json& value, const char* type = "llama") {
  nlohmann::json config = nlohmann::json::parse(fmt::format("{}}}", kLlama));
  config["model_type"] = type;
  config[field] = value;
  return parse_hf_config(config.dump(), "config.json");
}

}  // namespace

TEST_CASE("every parameter has a Hugging Face name that leads back to it") {
  for (const ModelArgs& args :
       {models::model_args("llama3", "debugmodel"), models::model_args("qwen3", "debugmodel"),
        models::model_args("llama3", "debugmodel", {.qkv_bias = true, .output_bias = true}),
        models::model_args("qwen2", "debugmodel"), models::model_args("qwen3", "8B", {.n_layers = 11}),
        models::model_args("qwen3", "debugmodel_moe", {.n_layers = 2}),
        models::model_args("deepseek_v3", "debugmodel"),
        models::model_args("deepseek_v3", "671B", {.n_layers = 4}),
        models::model_args("llama4", "debugmodel"), models::model_args("gpt_oss", "debugmodel")}) {
    std::set<std::pair<std::string, int64_t>> names;  // with the first column
    for (const ParameterPtr& parameter : models::Transformer(args).parameters()) {
      CAPTURE(args.family, parameter->fqn);
      const std::vector<HfTensor> tensors = hf_tensors(args, parameter->fqn);
      const bool separate =
          parameter->shape.size() == 3 && args.family != "llama4" && args.family != "gpt_oss";
      CHECK(tensors.size() == (separate ? static_cast<size_t>(args.experts.num_experts) : 1));
      for (const HfTensor& tensor : tensors) {
        CHECK(names.emplace(tensor.name, tensor.part.first).second);
        const bool rotated =
            tensor.name.find("q_proj") != tensor.name.npos || tensor.name.find("k_proj") != tensor.name.npos;
        CHECK(tensor.head_dim == (rotated && args.family == "llama3" ? args.attention.head_dim : 0));
        CHECK((tensor.head_dim == 0 || parameter->rows() % tensor.head_dim == 0));
      }
    }
    CHECK(names.contains({"lm_head.weight", 0}) == !args.tied);
    CHECK_FALSE(hf_may_ignore(args, "lm_head.weight"));
  }
  const ModelArgs args = models::model_args("llama3", "debugmodel");
  CHECK(hf_tensors(args, "layers.3.feed_forward.w2.weight").at(0).name ==
        "model.layers.3.mlp.down_proj.weight");
  CHECK(hf_may_ignore(args, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  for (const char* name :
       {"layers.6.attention.wq.weight", "layers.0.attention.q_norm.weight", "layers.00.ffn_norm.weight",
        "layers.-1.ffn_norm.weight", "layers.0ffn_norm.weight", "layers.", "output.bias", ""})
    CHECK_THROWS_AS(hf_tensors(args, name), Error);
}

TEST_CASE("experts lie in Hugging Face's files one by one, or transposed in one stack") {
  const ModelArgs deepseek = models::model_args("deepseek_v3", "671B");
  const std::vector<HfTensor> up = hf_tensors(deepseek, "layers.3.moe.experts.w3");
  CHECK(up.size() == 256);
  CHECK(up[17] == HfTensor{.name = "model.layers.3.mlp.experts.17.up_proj.weight", .part = {.matrix = 17}});
  CHECK(hf_tensors(deepseek, "layers.3.moe.expert_bias").at(0).name ==
        "model.layers.3.mlp.gate.e_score_correction_bias");
  CHECK(hf_keeps_float32("layers.3.moe.expert_bias"));
  CHECK_FALSE(hf_keeps_float32("layers.3.moe.experts.w1"));
  CHECK(hf_may_ignore(deepseek, "model.layers.61.eh_proj.weight"));
  CHECK_FALSE(hf_may_ignore(deepseek, "model.layers.6.mlp.gate.weight"));
  const ModelArgs llama4 = models::model_args("llama4", "debugmodel");
  CHECK(hf_tensors(llama4, "layers.1.moe.expert_bias").empty());
  CHECK(hf_tensors(llama4, "layers.1.moe.experts.w3").at(0) ==
        HfTensor{.name = "model.layers.1.feed_forward.experts.gate_up_proj",
                 .part = {.width = 2 * llama4.experts.hidden_dim, .first = llama4.experts.hidden_dim}});
  CHECK(hf_tensors(llama4, "layers.1.moe.experts.w2").at(0).part ==
        checkpoint::StoredPart{.width = llama4.dim});
  CHECK(hf_tensors(models::model_args("qwen3", "30B-A3B"), "layers.0.moe.expert_bias").empty());
  const ModelArgs gpt_oss = models::model_args("gpt_oss", "20b");
  const auto stack = [&](const char* name) {
    return hf_tensors(gpt_oss, fmt::format("layers.1.moe.experts.{}", name)).at(0);
  };
  CHECK(stack("mlp1_weight") ==
        HfTensor{.name = "model.layers.1.mlp.experts.gate_up_proj", .part = {.width = 5760}});
  CHECK(stack("mlp2_weight") ==
        HfTensor{.name = "model.layers.1.mlp.experts.down_proj", .part = {.width = 2880}});
  CHECK(stack("mlp1_bias") == HfTensor{.name = "model.layers.1.mlp.experts.gate_up_proj_bias"});
  CHECK(hf_tensors(gpt_oss, "layers.1.moe.router.gate.bias").at(0).name == "model.layers.1.mlp.router.bias");
}

TEST_CASE("rows of a rotated weight are reordered as Hugging Face converts them") {
  const HfTensor tensor{"q", 6};
  // their rows 0 to 5 of a head are ours 0 2 4 1 3 5
  std::vector<int64_t> order;
  for (int64_t row = 0; row < 12; ++row) order.push_back(our_row(tensor, row));
  CHECK(order == std::vector<int64_t>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11});
  for (int64_t row = 0; row < 24; ++row) CHECK(hf_row(tensor, our_row(tensor, row)) == row);
  CHECK(hf_row({"v", 0}, 5) == 5);
  CHECK(our_row({"v", 0}, 5) == 5);
}

TEST_CASE("a config.json of either style gives the dimensions") {
  const ModelArgs plain = llama("");
  CHECK(plain.family == "llama3");
  CHECK(plain.rope.style == models::RopeStyle::kInterleaved);
  CHECK(plain.attention.head_dim == 8);
  CHECK(plain.attention.n_kv_heads == 2);
  CHECK(plain.dense.hidden_dim == 100);
  CHECK(plain.rope.theta == 10000);
  CHECK(plain.max_seq_len == 4096);
  CHECK_FALSE(plain.rope.scaling);
  CHECK_FALSE(plain.tied);
  CHECK(llama(R"(, "rope_theta": 5e5, "rope_scaling": null, "head_dim": 20)").attention.head_dim == 20);
  CHECK(changed("num_key_value_heads", nullptr).attention.n_kv_heads == 6);
  const std::string scaling = R"("factor": 32.0, "low_freq_factor": 2, "high_freq_factor": 5.5,
                                 "original_max_position_embeddings": 1024)";
  for (const std::string& text :
       {R"(, "rope_theta": 7e4, "rope_scaling": {"rope_type": "llama3", )" + scaling + "}",
        R"(, "rope_theta": 7e4, "rope_scaling": {"type": "llama3", )" + scaling + "}",
        R"(, "rope_parameters": {"rope_theta": 7e4, "rope_type": "llama3", )" + scaling + "}",
        R"(, "rope_theta": 7e4, "rope_parameters": {"rope_type": "llama3", )" + scaling + "}"}) {
    const ModelArgs args = llama(text);
    CHECK(args.rope.theta == 7e4);
    CHECK(args.rope.scaling);
    CHECK(args.rope.factor == 32);
    CHECK(args.rope.low_freq_factor == 2);
    CHECK(args.rope.high_freq_factor == 5.5);
    CHECK(args.rope.original_length == 1024);
  }
  const ModelArgs qwen = changed("model_type", "qwen3");
  CHECK(qwen.family == "qwen3");
  CHECK(qwen.attention.head_dim == 128);
  CHECK(qwen.attention.qk_norm);
  CHECK(qwen.rope.style == models::RopeStyle::kHalfSplit);
}

TEST_CASE("biases of attention are those of the model_type and of attention_bias") {
  const auto biases = [](const ModelArgs& args) {
    return std::pair(args.attention.qkv_bias, args.attention.output_bias);
  };
  CHECK(biases(llama("")) == std::pair(false, false));
  CHECK(biases(llama(R"(, "attention_bias": true)")) == std::pair(true, true));
  for (const char* type : {"qwen3", "qwen2"}) {
    CHECK(biases(changed("model_type", type)) == std::pair(std::string(type) == "qwen2", false));
  }
  CHECK_THROWS_WITH(changed("attention_bias", true, "qwen2"), Contains("attention_bias = true"));
  const ModelArgs qwen2 = changed("model_type", "qwen2");
  CHECK(qwen2.family == "qwen2");
  CHECK(qwen2.attention.head_dim == qwen2.dim / qwen2.attention.n_heads);
  CHECK_FALSE(qwen2.attention.qk_norm);
  CHECK(qwen2.rope.style == models::RopeStyle::kHalfSplit);
  CHECK(changed("max_position_embeddings", nullptr, "qwen2").max_seq_len == 32768);
  // RoPE rotates the biases of queries and keys as their weights' rows.
  const ModelArgs rotated = llama(R"(, "attention_bias": true)");
  for (const char* name : {"wq", "wk", "wv", "wo"}) {
    const auto of = [&](const ModelArgs& args, const char* kind) {
      return hf_tensors(args, fmt::format("layers.1.attention.{}.{}", name, kind)).at(0);
    };
    CHECK(of(rotated, "bias").name == fmt::format("model.layers.1.self_attn.{}_proj.bias", name[1]));
    CHECK(of(rotated, "bias").head_dim == of(rotated, "weight").head_dim);
    if (name[1] != 'o') CHECK(of(qwen2, "bias").head_dim == 0);
  }
}

TEST_CASE("what a config.json with experts leaves out has the default of its type") {
  const auto parsed = [](const char* type, const std::string& more) {
    return parse_hf_config(fmt::format(R"({{"model_type": "{}", "hidden_size": 48, "num_hidden_layers": 2,
                                           "num_attention_heads": 6, "vocab_size": 100,
                                           "intermediate_size": 20{}}})",
                                       type, more),
                           "config.json");
  };
  const ModelArgs llama4 = parsed("llama4_text", R"(, "use_qk_norm": false, "attn_temperature_tuning": false,
      "num_local_experts": 4, "num_experts_per_tok": 1, "no_rope_layers": [1, 1], "layer_types": ["full_attention", "full_attention"])");
  CHECK(llama4.rope.theta == 5e5);
  CHECK(llama4.norm_eps == 1e-5);
  const std::string moe = R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8)";
  CHECK(parsed("qwen3_moe", moe).attention.head_dim == 8);
  const std::string latent =
      R"(, "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_key_value_heads": 6)";
  CHECK(parsed("deepseek_v3", latent).latent.q_lora_rank == 1536);
  CHECK(parsed("deepseek_v3", latent + R"(, "q_lora_rank": null)").latent.q_lora_rank == 0);
}

TEST_CASE("what a config.json asks for and is not computed here is refused by name") {
  for (const char* type : {"qwen2_moe", "gemma", "llama4", "deepseek_v2"})
    CHECK_THROWS_WITH(changed("model_type", type), Contains(type) && Contains("llama") && Contains("qwen3"));
  const auto deepseek = [](const std::string& field, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(hf_config(models::model_args("deepseek_v3", "671B"), {}));
    config[field] = value;
    return parse_hf_config(config.dump(), "config.json");
  };
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"scoring_func", "softmax"},
                                                           {"topk_method", "greedy"},
                                                           {"rope_interleave", false},
                                                           {"moe_layer_freq", 2},
                                                           {"kv_lora_rank", 0}})
    CHECK_THROWS_WITH(deepseek(field, value), Contains(field));
  CHECK(deepseek("qk_nope_head_dim", 127).attention.head_dim == 127 + 64);
  CHECK_THROWS_WITH(deepseek("qk_rope_head_dim", 63), Contains("qk_rope_head_dim"));
  const nlohmann::json yarn = {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 4096}};
  CHECK_THROWS_WITH(deepseek("rope_scaling", yarn), Contains("mscale_all_dim"));
  nlohmann::json uneven = yarn;
  uneven.update({{"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  CHECK_THROWS_WITH(deepseek("rope_scaling", uneven), Contains("mscale is 1.0"));
  const nlohmann::json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  CHECK(deepseek("quantization_config", blocks).experts.num_experts == 256);
  nlohmann::json llama4 = nlohmann::json::parse(hf_config(models::model_args("llama4", "debugmodel"), {}));
  CHECK(parse_hf_config(llama4.dump(), "c").experts.num_experts == 8);
  for (const char* field : {"use_qk_norm", "attn_temperature_tuning", "no_rope_layers", "layer_types"}) {
    nlohmann::json without = llama4;
    without.erase(field);  // what Meta's models have
    CHECK_THROWS_WITH(parse_hf_config(without.dump(), "c"), Contains(field));
  }
  for (const char* type : {"linear", "dynamic", "longrope"})
    CHECK_THROWS_WITH(changed("rope_scaling", {{"rope_type", type}, {"factor", 2.0}}), Contains(type));
  CHECK_THROWS_WITH(changed("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}),
                    Contains("full_attention"));
  CHECK_THROWS_WITH(changed("rope_parameters", {{"partial_rotary_factor", 0.5}}),
                    Contains("partial_rotary_factor"));
  CHECK_THROWS_WITH(changed("hidden_act", "gelu"),
                    Contains("is \"gelu\"") && Contains("\"silu\" or \"gelu_pytorch_tanh\""));
  CHECK_THROWS_WITH(changed("mlp_bias", true), Contains("mlp_bias"));
  CHECK_THROWS_WITH(changed("attention_dropout", 0.1), Contains("attention_dropout"));
  CHECK_THROWS_WITH(changed("quantization_config", {{"bits", 4}}), Contains("quantization_config"));
}

TEST_CASE("a wrong config.json is a configuration error in one sentence") {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    CHECK_THROWS_WITH(changed(key, nullptr), Contains(key));
    for (const auto& bad : {nlohmann::json(0), nlohmann::json(-1), nlohmann::json("8"), nlohmann::json(8.0),
                            nlohmann::json(uint64_t{1} << 40)})
      CHECK_THROWS_WITH(changed(key, bad), Contains(key) && Contains(bad.dump()));
  }
  CHECK_THROWS_WITH(changed("num_attention_heads", 5), Contains("head_dim"));
  CHECK_THROWS_WITH(changed("num_key_value_heads", 4), Contains("num_key_value_heads 4"));
  CHECK_THROWS_WITH(changed("head_dim", 7), Contains("7 wide"));
  CHECK_THROWS_WITH(changed("tie_word_embeddings", "yes"), Contains("tie_word_embeddings"));
  CHECK_THROWS_WITH(changed("rope_scaling", 7), Contains("rope_scaling"));
  CHECK_THROWS_WITH(changed("rope_scaling", {{"rope_type", "llama3"}}), Contains("factor"));
  CHECK_THROWS_WITH(changed("rms_norm_eps", 0), Contains("rms_norm_eps"));
  CHECK_THROWS_AS(parse_hf_config("[]", "c"), Error);
  try {
    read_hf_config("/no/such/config.json");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
  }
}

TEST_CASE("an exported config.json has every imported field that does not describe the model") {
  const ModelArgs args = models::model_args("qwen3", "debugmodel");
  HfExport options = {.dtype = "bfloat16", .bos_token_id = 3, .eos_token_id = 4};
  options.imported.config =
      R"({"eos_token_id":[1,7],"bos_token_id":null,"use_cache":false,"sliding_window":9,"x":{"y":[]},
      "vocab_size":5,"torch_dtype":"float32","max_position_embeddings":6,"layer_types":["sliding_attention"]})";
  const auto config = nlohmann::json::parse(hf_config(args, options));
  CHECK(config["eos_token_id"] == nlohmann::json({1, 7}));
  CHECK(config["bos_token_id"] == 3);
  CHECK(config["use_cache"] == false);
  CHECK(config["sliding_window"] == 9);
  CHECK(config["x"] == nlohmann::json::parse(R"({"y":[]})"));
  CHECK(config["vocab_size"] == args.vocab_size);
  CHECK(config["torch_dtype"] == "bfloat16");
  CHECK(config["max_position_embeddings"] == args.max_seq_len);
  CHECK(config["layer_types"] ==
        std::vector<std::string>(static_cast<size_t>(args.n_layers), "full_attention"));
  CHECK(nlohmann::json::parse(hf_generation_config(options)) ==
        nlohmann::json({{"_from_model_config", true}, {"bos_token_id", 3}, {"eos_token_id", {1, 7}}}));
  options.imported.generation = R"({"temperature":0.5,"eos_token_id":[4,7]})";
  std::vector<std::string> left_out;
  options.imported = within_vocabulary(options.imported, 7, left_out);
  CHECK(left_out == std::vector<std::string>{"eos_token_id"});
  CHECK(nlohmann::json::parse(hf_config(args, options))["eos_token_id"] == 4);  // the tokenizer's
  CHECK(nlohmann::json::parse(hf_generation_config(options)) == nlohmann::json({{"temperature", 0.5}}));
}

TEST_CASE("an exported config.json describes the same model") {
  std::vector<ModelArgs> models = {
      models::model_args("llama3", "8B"),
      models::model_args("llama3", "1B"),
      models::model_args("qwen3", "0.6B"),
      models::model_args("qwen2", "debugmodel"),
      models::model_args("llama3", "8B", {.qkv_bias = true, .output_bias = true}),
      models::model_args("qwen3", "debugmodel", {.dim = 50, .n_heads = 3, .n_kv_heads = 3})};
  models.push_back(models::model_args("llama3", "debugmodel", {.head_dim = 20, .rope_scaling = false}));
  models.push_back(models::model_args("qwen3", "30B-A3B", {.n_dense_layers = 2, .moe_every = 3}));
  models.push_back(models::model_args("deepseek_v3", "671B", {.rope_scaling = true}));
  models.push_back(models::model_args("deepseek_v3", "16B",
                                      {.rope_yarn = false, .score_func = models::ScoreFunction::kSigmoid}));
  models.push_back(models::model_args("llama4", "17bx16e"));
  models.push_back(models::model_args("qwen3", "debugmodel_moe", {.load_balance_coeff = 1e-3}));
  for (const ModelArgs& args : models) {
    const ModelArgs back = parse_hf_config(hf_config(args, {}), "config.json");
    CHECK(hf_differences(args, back) == std::vector<std::string>());
    CHECK(back.max_seq_len == args.max_seq_len);
  }
  const auto config = nlohmann::json::parse(hf_config(models[0], {.dtype = "bfloat16", .eos_token_id = 7}));
  CHECK(config["architectures"] == nlohmann::json::parse(R"(["LlamaForCausalLM"])"));
  CHECK(config["dtype"] == "bfloat16");
  CHECK(config["eos_token_id"] == 7);
  CHECK(config["bos_token_id"].is_null());
  CHECK(nlohmann::json::parse(hf_generation_config({.bos_token_id = 5, .eos_token_id = 7})) ==
        nlohmann::json({{"_from_model_config", true}, {"bos_token_id", 5}, {"eos_token_id", 7}}));
  CHECK(hf_generation_config({}).empty());
  CHECK_THROWS_WITH(hf_config(models::model_args("llama3", "debugmodel", {.qk_norm = true}), {}),
                    Contains("qk_norm"));
  CHECK_THROWS_WITH(
      hf_config(models::model_args("llama3", "debugmodel", {.n_heads = 3, .n_kv_heads = 3, .head_dim = 4}),
                {}),
      Contains("cannot be exported") && Contains("n_heads 3 does not divide dim"));
  CHECK_THROWS_WITH(hf_config(models::model_args("qwen3", "debugmodel", {.qk_norm = false}), {}),
                    Contains("no qwen3 model without it"));
  const std::pair<ModelArgs, const char*> refused[] = {
      {models::model_args("deepseek_v3", "16B"), "score_func is \"softmax\""},
      {models::model_args("deepseek_v3", "671B", {.num_shared_experts = 0}), "num_shared_experts is 0"},
      {models::model_args("qwen3", "debugmodel_moe", {.expert_groups = 4, .limited_groups = 2}),
       "expert_groups is 4"},
      {models::model_args("llama3", "debugmodel", {.num_experts = 4, .moe_hidden_dim = 8}),
       "num_experts is 4"},
      {models::model_args("llama3", "debugmodel", {.qkv_bias = true}), "output_bias is false"},
      {models::model_args("qwen2", "debugmodel", {.output_bias = true}), "queries, keys and values alone"},
      {models::model_args("qwen2", "debugmodel", {.qkv_bias = false}), "queries, keys and values alone"},
      {models::model_args("llama3", "debugmodel", {.rope_yarn = true, .rope_mscale = 0.7}),
       "rope_mscale is 0.7"},
      {models::model_args("llama3", "debugmodel", {.sinks = true}), "sinks is true"},
      {models::model_args("llama3", "debugmodel", {.sliding_window_size = 8}), "sliding_window_size is 8"}};
  for (const auto& [args, text] : refused) CHECK_THROWS_WITH(hf_config(args, {}), Contains(text));
  CHECK(hf_differences(models::model_args("llama3", "debugmodel"),
                       models::model_args("llama3", "debugmodel", {.rope_factor = 32})) ==
        std::vector<std::string>{"rope_factor is 8, but 32 in config.json"});
}

TEST_CASE("a parameter of a block that has no tensor in Hugging Face's files is named") {
  for (const std::string& name : models::model_names())
    for (const std::string& flavor : models::model_flavors(name)) {
      CAPTURE(name, flavor);
      CHECK(without_hf_tensor(describe_model(models::model_args(name, flavor, {}, true))).empty());
    }
  models::ModelDescription model = describe_model(models::model_args("llama3", "debugmodel"));
  model.kinds.front().feed_forward.parameters[1].hugging_face.name.clear();
  CHECK(without_hf_tensor(model) == "feed_forward.w2.weight");
}

}  // namespace hyperion::hugging_face
