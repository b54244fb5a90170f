#include "models/flavors/registry.h"

#include <catch2/catch.hpp>

#include "base/error.h"
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

TEST_CASE("a model declares as many parameters as its flavour counts") {
  for (const char* name : {"llama3", "qwen3"}) {
    const ModelArgs args = model_args(name, "debugmodel");
    int64_t total = 0;
    for (const ParameterPtr& parameter : Transformer(args).parameters()) total += parameter->numel();
    CHECK(total == count_parameters(args).total);
  }
}

TEST_CASE("overrides change a flavour and keep its proportions") {
  const ModelArgs wide = model_args("llama3", "debugmodel", {.dim = 512, .n_heads = 8});
  CHECK(wide.head_dim == 64);
  CHECK(wide.n_kv_heads == 8);
  CHECK(wide.hidden_dim == 768);
  CHECK(model_args("llama3", "debugmodel", {.dim = 512, .multiple_of = 256}).hidden_dim == 1536);
  CHECK(model_args("qwen3", "0.6B", {.n_heads = 8}).head_dim == 128);
}

TEST_CASE("flavours are listed by size and the nearest size is suggested") {
  CHECK(model_flavors("llama3") ==
        std::vector<std::string>{"debugmodel", "1B", "3B", "8B", "70B", "405B", "from_hf"});
  CHECK(model_flavors("qwen3") ==
        std::vector<std::string>{"debugmodel", "0.6B", "1.7B", "4B", "8B", "14B", "32B", "from_hf"});
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

}  // namespace hyperion::models
