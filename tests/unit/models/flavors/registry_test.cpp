#include "models/flavors/registry.h"

#include <limits>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/description.h"
#include "models/transformer.h"

namespace hyperion::models {

TEST_CASE("flavours have the published parameter counts") {
  struct Case {
    const char *name, *flavor;
    int64_t parameters;
  };
  // torchtitan v0.2.2's flavours; 1B and 3B: Meta's model cards (1.24 and 3.21 billion)
  for (const Case& c :
       {Case{"llama3", "debugmodel", 6163712}, Case{"llama3", "8B", 8030261248},
        Case{"llama3", "70B", 70553706496}, Case{"llama3", "405B", 405853388800},
        Case{"llama3", "1B", 1235814400}, Case{"llama3", "3B", 3212749824},
        Case{"qwen3", "debugmodel", 31987968}, Case{"qwen3", "0.6B", 596049920},
        Case{"qwen3", "1.7B", 1720574976}, Case{"qwen3", "4B", 4022468096}, Case{"qwen3", "8B", 8190735360},
        Case{"qwen3", "14B", 14768307200}, Case{"qwen3", "32B", 32762123264}}) {
    CAPTURE(c.name, c.flavor);
    CHECK(count_parameters(model_args(c.name, c.flavor)).total == c.parameters);
  }
}

TEST_CASE("flavours with experts have torchtitan's total and active parameters") {
  struct Case {
    const char *name, *flavor;
    int64_t total, active;
  };
  // get_nparams_and_flops() of torchtitan v0.2.2's models
  for (const Case& c :
       {Case{"qwen3", "debugmodel_moe", 315758848, 51517696},
        Case{"qwen3", "30B-A3B", 30532122624, 3353032704},
        Case{"qwen3", "235B-A22B", 235093634560, 22190763520},
        Case{"deepseek_v3", "debugmodel", 33014016, 28098816},
        Case{"deepseek_v3", "16B", 15706484224, 2661150208},
        Case{"deepseek_v3", "236B", 235741434880, 21375800320},
        Case{"deepseek_v3", "671B", 671026404352, 37552282624},
        Case{"llama4", "debugmodel", 15017216, 6759680}, Case{"llama4", "17bx16e", 107769861120, 17172894720},
        Case{"llama4", "17bx128e", 400711848960, 17184691200},
        Case{"gpt_oss", "debugmodel", 183397920, 147912224}, Case{"gpt_oss", "20b", 20914757184, 4187440704},
        Case{"gpt_oss", "120b", 116829156672, 5711982912}}) {
    CAPTURE(c.name, c.flavor);
    const ParameterCounts counts = count_parameters(model_args(c.name, c.flavor));
    CHECK(counts.total == c.total);
    CHECK(counts.active == c.active);
  }
}

TEST_CASE("biases of experts move, and documents are masked, in the flavours of which torchtitan's do") {
  struct Case {
    const char *name, *flavor;
    double coefficient;
    bool masks;
  };
  for (const Case& c : {Case{"qwen3", "debugmodel_moe", 0, false}, Case{"qwen3", "30B-A3B", 0, false},
                        Case{"qwen3", "235B-A22B", 0, false}, Case{"deepseek_v3", "debugmodel", 1e-3, false},
                        Case{"deepseek_v3", "16B", 1e-3, true}, Case{"deepseek_v3", "236B", 1e-3, true},
                        Case{"deepseek_v3", "671B", 1e-3, true}, Case{"llama4", "debugmodel", 1e-3, false},
                        Case{"llama4", "17bx16e", 1e-3, false}, Case{"llama4", "17bx128e", 1e-3, false},
                        Case{"gpt_oss", "debugmodel", 1e-3, false}, Case{"gpt_oss", "20b", 1e-3, false},
                        Case{"gpt_oss", "120b", 1e-3, false}}) {
    CAPTURE(c.name, c.flavor);
    const ModelArgs args = model_args(c.name, c.flavor);
    CHECK(args.experts.load_balance_coeff == c.coefficient);
    CHECK(args.masks_documents == c.masks);
  }
}

TEST_CASE("experts that cannot be are refused by the field that decides it") {
  const auto refused = [](const ModelOverrides& changes, const char* text) {
    CHECK_THROWS_WITH(model_args("deepseek_v3", "671B", changes), Catch::Contains(text));
  };
  refused({.top_k = 257}, "top_k is 257, expected at most num_experts = 256");
  refused({.expert_groups = 7}, "expert_groups is 7, expected a divisor of num_experts = 256");
  refused({.expert_groups = 256}, "leaves each group two experts");
  refused({.limited_groups = 9}, "limited_groups is 9");
  refused({.expert_groups = 128, .limited_groups = 3},
          "3 groups of 2 experts are fewer experts than top_k = 8");
  refused({.qk_rope_head_dim = 63}, "qk_rope_head_dim is 63, expected an even number");
  refused({.v_head_dim = 193}, "v_head_dim is 193");
  refused({.n_kv_heads = 8}, "latent attention has as many");
  CHECK_THROWS_WITH(model_args("gpt_oss", "20b", {.activation = Activation::kGeluTanh}),
                    Catch::Contains("activation is \"gelu_tanh\", expected \"silu\""));
  CHECK(model_args("deepseek_v3", "debugmodel", {.qk_nope_head_dim = 32, .v_head_dim = 16})
            .attention.head_dim == 96);
}

TEST_CASE("of latent attention's heads the rotated part alone is even") {
  const ModelArgs odd = model_args("deepseek_v3", "debugmodel", {.qk_nope_head_dim = 33, .v_head_dim = 17});
  CHECK(odd.attention.head_dim == 97);
  CHECK_THROWS_WITH(model_args("llama3", "debugmodel", {.head_dim = 97}),
                    Catch::Contains("head_dim is 97, expected an even number (RoPE rotates pairs)"));
}

TEST_CASE("a model declares as many parameters as its flavour counts") {
  for (const auto& [name, flavor] : {std::pair("llama3", "debugmodel"),
                                     {"qwen3", "debugmodel"},
                                     {"qwen3", "debugmodel_moe"},
                                     {"deepseek_v3", "debugmodel"},
                                     {"deepseek_v3", "236B"},
                                     {"llama4", "debugmodel"},
                                     {"gpt_oss", "debugmodel"}}) {
    CAPTURE(name, flavor);
    const ModelArgs args = model_args(name, flavor);
    int64_t total = 0;
    for (const ParameterPtr& parameter : Transformer(args).parameters()) total += parameter->numel();
    CHECK(total == count_parameters(args).total);
  }
}

TEST_CASE("overrides change a flavour and keep its proportions") {
  const ModelArgs wide = model_args("llama3", "debugmodel", {.dim = 512, .n_heads = 8});
  CHECK(wide.attention.head_dim == 64);
  CHECK(wide.attention.n_kv_heads == 8);
  CHECK(wide.dense.hidden_dim == 768);
  CHECK(model_args("llama3", "debugmodel", {.dim = 512, .multiple_of = 256}).dense.hidden_dim == 1536);
  CHECK(model_args("qwen3", "0.6B", {.n_heads = 8}).attention.head_dim == 128);
}

TEST_CASE("flavours are listed by size and the nearest size is suggested") {
  CHECK(model_flavors("llama3") ==
        std::vector<std::string>{"debugmodel", "1B", "3B", "8B", "70B", "405B", "from_hf"});
  CHECK(model_flavors("qwen3") == std::vector<std::string>{"debugmodel", "debugmodel_moe", "0.6B", "1.7B",
                                                           "4B", "8B", "14B", "30B-A3B", "32B", "235B-A22B",
                                                           "from_hf"});
  const std::pair<const char*, const char*> cases[] = {{"7B", "8B"},
                                                       {"7b", "8B"},
                                                       {"8b", "8B"},
                                                       {"2B", "3B"},
                                                       {"65B", "70B"},
                                                       {"400B", "405B"},
                                                       {"1000B", "405B"},
                                                       {"500M", "1B"},
                                                       {"Llama-3.1-8B", "8B"},
                                                       {"Meta-Llama-3-70B-Instruct", "70B"},
                                                       {"debugmodle", "debugmodel"},
                                                       {"fromhf", "from_hf"},
                                                       {"B", "1B"},
                                                       {"nan", ""},
                                                       {"-8B", "8B"},
                                                       {"", ""}};
  for (const auto& [wrong, meant] : cases) {
    CAPTURE(wrong);
    CHECK(nearest_flavor("llama3", wrong) == meant);
  }
  CHECK(nearest_flavor("qwen3", "0.5B") == "0.6B");
  CHECK_THROWS_WITH(model_args("llama3", "7B"),
                    Catch::Contains("debugmodel, 1B, 3B, 8B, 70B, 405B, from_hf; did you "
                                    "mean 8B?"));
}

TEST_CASE("unknown names and unfit dimensions are refused with what is known") {
  CHECK_THROWS_WITH(model_args("llama9", "8B"), Catch::Contains("llama3") && Catch::Contains("qwen3"));
  CHECK_THROWS_WITH(model_args("llama3", "9B"), Catch::Contains("70B"));
  CHECK_THROWS_AS(model_args("llama3", "8B", {.n_kv_heads = 5}), Error);
  CHECK_THROWS_AS(model_args("llama3", "8B", {.n_layers = 0}), Error);
  CHECK_THROWS_AS(model_args("llama3", "debugmodel", {.head_dim = 15}), Error);
}

TEST_CASE("numbers of a model that are infinite or 0 in fp32 are refused by name") {
  const auto expects = [](const ModelOverrides& overrides, const std::string& key) {
    CHECK_THROWS_WITH(model_args("deepseek_v3", "debugmodel", overrides),
                      Catch::Contains(key + " is") && Catch::Contains("infinite or 0 in fp32"));
  };
  for (const double value : {1e39, 1e-39, std::numeric_limits<double>::infinity()}) {
    CAPTURE(value);
    expects({.norm_eps = value}, "norm_eps");
    expects({.rope_theta = value}, "rope_theta");
    expects({.rope_low_freq_factor = value}, "rope_low_freq_factor");
    expects({.rope_beta_slow = value}, "rope_beta_slow");
    expects({.rope_mscale = value}, "rope_mscale");
    expects({.route_scale = value}, "route_scale");
    expects({.load_balance_coeff = value}, "load_balance_coeff");
    expects({.router_z_loss_coeff = value}, "router_z_loss_coeff");
    expects({.sequence_aux_loss_coeff = value}, "sequence_aux_loss_coeff");
    expects({.global_aux_loss_coeff = value}, "global_aux_loss_coeff");
  }
  expects({.rope_factor = 1e39}, "rope_factor");
  expects({.rope_high_freq_factor = 1e39}, "rope_high_freq_factor");
  expects({.rope_beta_fast = 1e39}, "rope_beta_fast");
  CHECK(model_args("deepseek_v3", "debugmodel", {.rope_mscale = 0, .load_balance_coeff = 0}).rope.mscale ==
        0);
}

TEST_CASE("more blocks or experts than any model has are refused before anything is made for each") {
  CHECK(model_args("llama3", "debugmodel", {.n_layers = kMaxLayers}).n_layers == kMaxLayers);
  CHECK_THROWS_WITH(model_args("llama3", "debugmodel", {.n_layers = kMaxLayers + 1}),
                    Catch::Contains("n_layers is 10001, expected a value from 1 to 10000"));
  for (const ModelOverrides& experts : {ModelOverrides{.num_experts = kMaxExperts + 1},
                                        ModelOverrides{.num_shared_experts = kMaxExperts + 1}})
    CHECK_THROWS_WITH(model_args("qwen3", "debugmodel_moe", experts),
                      Catch::Contains("experts is 65537, expected a value from 0 to 65536"));
}

}  // namespace hyperion::models
