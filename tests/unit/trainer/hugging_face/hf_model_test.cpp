#include "trainer/hugging_face/hf_model.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "trainer/build/model_options.h"

namespace hyperion::hugging_face {

using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 60, "intermediate_size": 77,
  "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14, "vocab_size": 1009,
  "rms_norm_eps": 2e-05, "tie_word_embeddings": true, "max_position_embeddings": 512, "rope_theta": 1234.5,
  "rope_scaling": {"rope_type": "llama3", "factor": 3, "low_freq_factor": 1.5, "high_freq_factor": 6,
                   "original_max_position_embeddings": 128}})";

config::ResolvedConfig resolve(const std::string& toml, const fs::path& base = "/") {
  config::ResolvedConfig resolved = config::parse_config(toml, "job.toml", {});
  resolve_hf_model(resolved, base);
  return resolved;
}

}  // namespace

TEST_CASE("dimensions that do not fit together are refused at the place of the key that is set") {
  const auto refusal = [](const std::string& args) {
    return error_of(ExitCode::kUsage, [&] { resolve("[model]\nflavor = \"8B\"\n[model.args]\n" + args); });
  };
  CHECK_THAT(refusal("n_heads = 12"),
             Contains("job.toml:4:11: model.args.n_heads = 12: n_heads is 12, expected a "
                      "multiple of n_kv_heads = 8"));
  CHECK_THAT(refusal("n_kv_heads = 5"), Contains("job.toml:4:14: model.args.n_kv_heads = 5: n_heads is 32"));
  CHECK_THAT(refusal("head_dim = 15"),
             Contains("job.toml:4:12: model.args.head_dim = 15: head_dim is 15, expected"));
  CHECK_THAT(refusal("dim = 96"),
             Contains("job.toml:4:7: model.args.dim = 96: head_dim is 3 (dim 96 / 32 heads)"));
  CHECK_THAT(refusal("rope_theta = 0.5"), Contains("job.toml:4:14: model.args.rope_theta = 0.5: "));
  CHECK_THAT(refusal("n_kv_heads = 5\nhead_dim = 15"), Contains("2 problems"));
}

TEST_CASE("an option that changes nothing in its model is refused at its place with what to do") {
  struct Case {
    const char *name, *flavor, *args, *says;
  };
  const auto resolve_case = [](const Case& c) {
    CAPTURE(c.name, c.flavor, c.args);
    resolve(fmt::format("[model]\nname = '{}'\nflavor = '{}'\n[model.args]\n{}", c.name, c.flavor, c.args));
  };
  for (const Case& c : {
           Case{"llama3", "8B", "top_k = 2", "no effect without experts; leave it out, or set num_experts"},
           {"llama3", "8B", "num_shared_experts = 1", "no effect without experts"},
           {"llama3", "8B", "score_func = 'sigmoid'", "no effect without experts"},
           {"llama3", "8B", "load_balance_coeff = 0.1", "no effect without experts"},
           {"llama3", "8B", "router_z_loss_coeff = 0.1", "no effect without experts"},
           {"qwen3", "8B", "global_aux_loss_coeff = 0.1", "no effect without experts"},
           {"llama3", "8B", "limited_groups = 1", "no effect without experts"},
           {"deepseek_v3", "debugmodel", "limited_groups = 1", "or set expert_groups"},
           {"llama3", "8B", "rope_truncate = false",
            "no effect without YaRN; leave it out, or set rope_yarn"},
           {"deepseek_v3", "debugmodel", "rope_truncate = false", "no effect with latent attention"},
           {"llama3", "8B", "full_attention_every = 2", "no effect without a window; leave it out, or set"},
           {"deepseek_v3", "debugmodel", "sliding_window_size = 8", "latent attention has no window"},
           {"deepseek_v3", "debugmodel", "sinks = true", "latent attention has none"},
           {"qwen3", "8B", "v_head_dim = 64",
            "no effect without latent attention; leave it out, or set kv_lora_rank"},
           {"deepseek_v3", "debugmodel", "head_dim = 128",
            "no effect with latent attention, whose heads have"},
           {"deepseek_v3", "debugmodel", "qk_norm = true", "norms of their latents; leave it out"},
           {"deepseek_v3", "debugmodel", "qkv_bias = true", "which has no biases; leave it out"},
           {"deepseek_v3", "debugmodel", "rope_beta_slow = 33.0", "is 33, expected at most rope_beta_fast"},
           {"deepseek_v3", "debugmodel", "rope_low_freq_factor = 2.0", "no effect with YaRN"},
           {"deepseek_v3", "debugmodel", "rope_mscale = 1.5\nrope_yarn = false", "or set rope_yarn"},
           {"qwen3", "8B", "rope_factor = 2.0", "or set rope_scaling"},
       }) {
    const std::string args = c.args;
    CHECK_THAT(error_of(ExitCode::kUsage, [&] { resolve_case(c); }),
               Contains("job.toml:5:") && Contains("model.args." + args.substr(0, args.find(' '))) &&
                   Contains(c.says));
  }
  // A flavour's own values, as a checkpoint's differences are printed; what a head's width is anyway; parts
  // that are switched off.
  for (const Case& c :
       {Case{"llama3", "8B", "top_k = 1\nrope_yarn = false", ""},
        {"llama3", "8B", "rope_yarn = true\nrope_truncate = false", ""},
        {"llama3", "8B", "sliding_window_size = 8\nfull_attention_every = 2\nsinks = true", ""},
        {"deepseek_v3", "671B", "qk_norm = false\nhead_dim = 192", ""},
        {"deepseek_v3", "671B", "qk_nope_head_dim = 64\nhead_dim = 128", ""},
        {"deepseek_v3", "671B", "kv_lora_rank = 0\nrope_yarn = false\nhead_dim = 128", ""},
        {"deepseek_v3", "671B", "num_experts = 0", ""},
        {"qwen3", "8B", "num_experts = 4\nmoe_hidden_dim = 8\ntop_k = 2", ""}})
    resolve_case(c);
}

TEST_CASE("a model's dimensions are those of its flavour and of the job, without keys that change nothing") {
  models::ModelOverrides dimensions =
      dimensions_of(resolve("[model]\nflavor = \"70B\"\nargs.n_layers = 4").config.model);
  CHECK(dimensions.dim == 8192);
  CHECK(dimensions.n_layers == 4);
  CHECK(dimensions.head_dim == 128);
  CHECK(dimensions.hidden_dim == 28672);
  CHECK(dimensions.num_experts == 0);
  CHECK_FALSE(dimensions.multiple_of);
  CHECK_FALSE(dimensions.top_k);
  CHECK_FALSE(dimensions.q_lora_rank);
  dimensions = dimensions_of(resolve("[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"").config.model);
  CHECK(dimensions.top_k == 8);
  CHECK(dimensions.kv_lora_rank == 512);
  CHECK_FALSE(dimensions.head_dim);
}

TEST_CASE("a flavour of another size is named with the nearest one") {
  CHECK_THAT(
      error_of(ExitCode::kUsage, [] { resolve("[model]\nflavor = \"7B\""); }),
      Contains(
          "job.toml:2:10: model.flavor = \"7B\": llama3 has no such flavour; known: debugmodel, 1B, 3B, 8B, "
          "70B, 405B, from_hf; did you mean 8B?"));
}

TEST_CASE("flavour from_hf takes every dimension from config.json") {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << kConfig;
  const std::string here = folder.path().string();
  const std::string model = "[model]\nflavor = \"from_hf\"\n";
  const config::ResolvedConfig resolved = resolve(model + "hf_assets_path = \"" + here + "\"\n");
  const models::ModelArgs args = config::model_args(resolved.config.model);
  CHECK(args.dim == 60);
  CHECK(args.n_layers == 3);
  CHECK(args.attention.n_heads == 6);
  CHECK(args.attention.n_kv_heads == 2);
  CHECK(args.attention.head_dim == 14);
  CHECK(args.dense.hidden_dim == 77);
  CHECK(args.vocab_size == 1009);
  CHECK(args.max_seq_len == 512);
  CHECK(args.norm_eps == 2e-5);
  CHECK(args.rope.theta == 1234.5);
  CHECK(args.rope.scaling);
  CHECK(args.rope.factor == 3);
  CHECK(args.rope.low_freq_factor == 1.5);
  CHECK(args.rope.high_freq_factor == 6);
  CHECK(args.rope.original_length == 128);
  CHECK(args.tied);
  CHECK_FALSE(args.attention.qk_norm);
  CHECK(resolved.origin("model.args.dim") == here + "/config.json");

  const config::ResolvedConfig beside =
      resolve(model + "hf_assets_path = \"/none\"\n[checkpoint]\ninitial_load_path = \"" + here +
              "\"\n[model.args]\nn_layers = 1\n");
  CHECK(config::model_args(beside.config.model).n_layers == 1);
  CHECK(beside.origin("model.args.n_layers") != here + "/config.json");
  CHECK(config::model_args(beside.config.model).dim == 60);
}

TEST_CASE("flavour from_hf without a fitting config.json is refused in one sentence") {
  const test::TemporaryFolder folder;
  const std::string model =
      "[model]\nflavor = \"from_hf\"\nhf_assets_path = \"" + folder.path().string() + "\"\n";
  CHECK_THROWS_WITH(resolve(model), Contains("no config.json in " + folder.path().string()));
  CHECK_THROWS_WITH(config::model_args(config::parse_config(model, "job.toml", {}).config.model),
                    Contains("dim is 0"));
  std::ofstream(folder.path() / "config.json") << kConfig;
  CHECK_THROWS_WITH(resolve(model + "name = \"qwen3\"\n"), Contains("set model.name = \"llama3\""));
  std::ofstream(folder.path() / "config.json") << "{";
  try {
    resolve(model);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK_THAT(error.what(), Contains("config.json") && Contains("JSON"));
  }
  CHECK(resolve("[model]\nflavor = \"8B\"\n").origins.size() == 1);
}

TEST_CASE("a flavour that the model does not have is named with its place") {
  CHECK_THAT(
      error_of(ExitCode::kUsage, [] { resolve("[model]\nname = \"llama4\"\nflavor = \"17bx16e_irope\"\n"); }),
      Contains("job.toml:3:10: model.flavor = \"17bx16e_irope\": attention without positions in every "
               "fourth block is not available; known: debugmodel, "));
  for (const char* masked : {"8B_flex", "debugmodel_varlen_attn"})
    CHECK_THAT(
        error_of(ExitCode::kUsage, [&] { resolve(fmt::format("[model]\nflavor = \"{}\"\n", masked)); }),
        Contains("training.document_mask = true") && !Contains("did you mean"));
  const std::string typo = error_of(ExitCode::kUsage, [] { resolve("[model]\nflavor = \"debugmodle\"\n"); });
  CHECK_THAT(typo, Contains("job.toml:2:10: model.flavor = \"debugmodle\": llama3 has no such flavour") &&
                       Contains("did you mean debugmodel?"));
}

}  // namespace hyperion::hugging_face
