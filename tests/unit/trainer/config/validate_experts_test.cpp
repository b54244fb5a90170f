#include "trainer/config/validate_experts.h"

#include <utility>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "models/flavors/registry.h"
#include "tests/support/error_of.h"

namespace hyperion::config {

using Catch::Contains;

TEST_CASE("tokens travel once per node between whole nodes only") {
  RunContext facts;
  facts.model = models::model_args("deepseek_v3", "debugmodel", {});  // 8 experts
  facts.world_size = 4;
  const auto refused = [&](const std::string& keys) {
    Problems found;
    check_config(parse_config("[model]\nname = \"deepseek_v3\"\n[parallelism]\n"
                              "expert_parallel_once_per_node = true\n" +
                                  keys,
                              "job.toml", {}),
                 facts, found);
    CHECK(found.lines().size() <= 1);
    return found.lines().empty() ? "" : found.lines()[0];
  };
  const std::string four = "expert_parallel_degree = 4";
  CHECK(refused(four).empty());  // the ranks of a node are not known
  for (const auto& [node, works] : {std::pair(1, true), {2, true}, {3, false}, {4, false}}) {
    facts.ranks_per_node = node;
    CHECK(refused(four).empty() == works);
  }
  CHECK_THAT(refused(four),
             Contains("job.toml:4:") &&
                 Contains("parallelism.expert_parallel_once_per_node = true: the 4 ranks that split the "
                          "experts are on one node, which has 4 "
                          "(LOCAL_WORLD_SIZE): no token travels between nodes"));
  facts.ranks_per_node = 3;
  CHECK_THAT(refused(four), Contains("4 ranks, to be whole nodes of 3 ranks (LOCAL_WORLD_SIZE)"));
  facts.ranks_per_node = 1;
  CHECK_THAT(
      refused("tensor_parallel_degree = 2\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = 2"),
      Contains("the ranks of an expert, 2, to be on one node"));
}

TEST_CASE("coefficients of auxiliary losses that cannot be computed are refused") {
  const auto problem = [](const std::string& text) {
    Problems found;
    check_config(parse_config(text, "job.toml", {}), {}, found);
    return found.lines().empty() ? "" : found.lines()[0];
  };
  CHECK(problem("[training]\nz_loss = 1e-4").empty());
  CHECK_THAT(problem("[training]\nz_loss = 1e-50"),
             Contains("job.toml:2:10: training.z_loss = 1e-50: expected 0"));
  CHECK_THAT(problem("[training]\nz_loss = 2.0"), Contains("expected 0 or 1.2e-38 to 1"));
  for (const char* negative :
       {"[training]\nz_loss = -1e-4", "[model.args]\nrouter_z_loss_coeff = -1e-4",
        "[model.args]\nsequence_aux_loss_coeff = -1e-4", "[model.args]\nglobal_aux_loss_coeff = -1e-4"})
    CHECK_THAT(error_of(ExitCode::kUsage, [&] { parse_config(negative, "job.toml", {}); }),
               Contains("loss") && Contains("at least 0"));
}

}  // namespace hyperion::config
