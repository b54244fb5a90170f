#include "parallel/pipeline/split.h"

#include <limits>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "models/flavors/registry.h"

namespace hyperion::parallel {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using enum PipelineKind;
using Parts = std::vector<std::vector<std::string>>;

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

const std::vector<std::string> kUnits = {"tok_embeddings", "layers.0", "layers.1", "layers.2", "norm,output"};

}  // namespace

TEST_CASE("every flavour divides over 1 to 16 ranks, each unit on one stage and blocks even") {
  for (const std::string_view model : {"llama3", "qwen3", "deepseek_v3", "llama4"}) {
    for (const std::string& flavor : models::model_flavors(model)) {
      if (flavor == models::kFlavorFromHf) continue;
      const int blocks = static_cast<int>(models::model_args(model, flavor).n_layers);
      for (int ranks = 1; ranks <= 16; ++ranks) {
        for (const PipelineKind kind : {k1F1B, kInterleaved1F1B}) {
          const int stages = number_of_stages(kind, ranks, blocks, {});
          CAPTURE(model, flavor, blocks, stages);
          if (stages > blocks + 2) {
            CHECK_THROWS_AS(split_units(stages, blocks, {}), Error);
            continue;
          }
          const std::vector<UnitRange> ranges = split_units(stages, blocks, {});
          REQUIRE(ranges.size() == static_cast<size_t>(stages));
          size_t next = 0;
          for (const UnitRange& range : ranges) {
            CHECK(range.first == next);
            const int units = static_cast<int>(range.end - range.first);
            CHECK((units == (blocks + 2) / stages || units == (blocks + 2) / stages + 1));
            next = range.end;
          }
          CHECK(next == static_cast<size_t>(blocks) + 2);
        }
      }
    }
  }
}

TEST_CASE("stages may be uneven, and norm and head alone") {
  CHECK(split_units(8, 8, {}) ==
        std::vector<UnitRange>{{0, 2}, {2, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}, {8, 9}, {9, 10}});
  CHECK(split_units(2, 3, {.first_stage_less_layers = 2, .last_stage_less_layers = 0}) ==
        std::vector<UnitRange>{{0, 2}, {2, 5}});
  CHECK(split_units(1, 4, {}) == std::vector<UnitRange>{{0, 6}});
}

TEST_CASE("stages that there are no blocks for are refused with key and remedy") {
  CHECK_THAT(refusal([] { split_units(12, 8, {}); }),
             Contains("12 pipeline stages are more than the 10") &&
                 Contains("lower parallelism.pipeline_parallel_degree"));
  CHECK_THAT(refusal([] { split_units(4, 8, {.first_stage_less_layers = 4}); }),
             Contains("pipeline_parallel_first_stage_less_layers is 4, more than the 3"));
  CHECK_THAT(refusal([] { split_units(4, 8, {.last_stage_less_layers = 5}); }),
             Contains("pipeline_parallel_last_stage_less_layers is 5, more than the 3"));
}

TEST_CASE("layers_per_stage gives the number of stages, or says which values fit") {
  CHECK(number_of_stages(kInterleaved1F1B, 4, 30, {.layers_per_stage = 2}) == 16);
  CHECK(number_of_stages(k1F1B, 4, 30, {.layers_per_stage = 8}) == 4);
  CHECK(number_of_stages(kGPipe, 4, 30, {}) == 4);
  CHECK(number_of_stages(kDualPipeV, 4, 30, {}) == 8);
  CHECK_THAT(refusal([] { number_of_stages(kInterleaved1F1B, 4, 30, {.layers_per_stage = 3}); }),
             Contains("make 11 stages") && Contains("a multiple of 4, at least 8") &&
                 Contains("values that fit: 4, 2, 1"));
  CHECK_THAT(refusal([] { number_of_stages(kZbvZeroBubble, 4, 30, {.layers_per_stage = 2}); }),
             Contains("needs 8;") && Contains("values that fit: 4"));
  CHECK_THAT(refusal([] { number_of_stages(k1F1B, 4, 1, {.layers_per_stage = 1}); }),
             Contains("no value fits"));
}

TEST_CASE("listed modules give each stage's units") {
  CHECK(units_of_model_parts(
            kUnits, {{"tok_embeddings", "layers.0"}, {"layers.1"}, {"layers.2"}, {"norm", "output"}}) ==
        std::vector<UnitRange>{{0, 2}, {2, 3}, {3, 4}, {4, 5}});
  CHECK(units_of_model_parts(kUnits,
                             {{"layers.0", "tok_embeddings"}, {"output", "norm", "layers.2", "layers.1"}}) ==
        std::vector<UnitRange>{{0, 2}, {2, 5}});
}

TEST_CASE("listed modules that are unknown, missing, repeated, misplaced or none are refused by name") {
  const auto refused = [](const Parts& parts) {
    const std::string text = refusal([&] { units_of_model_parts(kUnits, parts); });
    const std::string key = "parallelism.module_fqns_per_model_part: ";
    REQUIRE(text.starts_with(key));
    return text.substr(key.size());
  };
  CHECK_THAT(refused({{"tok_embeddings", "layers.0", "layer.1"}, {"layers.2", "norm", "output"}}),
             Equals("part 0 names \"layer.1\", which the model does not have; did you mean layers.1?"));
  CHECK_THAT(refused({{"tok_embeddings", "layers.0"}, {"layers.2", "norm", "output"}}),
             Equals("layers.1 is in none of the 2 parts, and would not be trained"));
  CHECK_THAT(
      refused({{"tok_embeddings", "layers.0", "layers.1"}, {"layers.1", "layers.2", "norm", "output"}}),
      Equals("layers.1 is in part 0 and in part 1, expected once"));
  CHECK_THAT(refused({{"tok_embeddings", "layers.0", "layers.2"}, {"layers.1", "norm", "output"}}),
             Equals("layers.2 is in part 0 and layers.1, which comes before it in the model, in part 1"));
  CHECK_THAT(refused({{"tok_embeddings", "layers.0", "layers.1", "layers.2", "norm"}, {"output"}}),
             Equals("norm is in part 0 and output in part 1, expected both in one"));
  CHECK_THAT(refused({{"tok_embeddings", "layers.0", "layers.1"}, {}, {"layers.2", "norm", "output"}}),
             Equals("part 1 is empty, expected modules of the model"));
  CHECK_THAT(refused({}), Contains("is in none of the 0 parts"));
}

}  // namespace hyperion::parallel
