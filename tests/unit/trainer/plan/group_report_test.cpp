#include "trainer/plan/group_report.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"

namespace hyperion::trainer {

TEST_CASE("the groups of a model are described with their parameters") {
  const models::ModelArgs model = models::model_args("llama3", "debugmodel");
  CHECK(describe_groups({}, model).empty());
  const std::vector<std::string> lines =
      describe_groups({.decay_norms_and_biases = false,
                       .groups = {{.match = {"tok_embeddings.weight"}, .name = "table", .lr_scale = 0.5},
                                  {.match = {"tok_*"}}}},
                      model);
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[0], Catch::Contains("group table: 1 parameter with ") &&
                           Catch::Contains("learning rate x 0.5, weight decay 0.1, betas 0.9 and 0.95"));
  CHECK_THAT(lines[1], Catch::Contains("group group1: no parameter is left for it"));
  CHECK_THAT(lines[2] + lines[3],
             Catch::Contains("group default: 13 parameters") && Catch::Contains("weight decay 0,"));
}

}  // namespace hyperion::trainer
