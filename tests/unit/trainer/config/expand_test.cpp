#include "trainer/config/expand.h"

#include <map>

#include <catch2/catch.hpp>

#include "tests/support/error_of.h"

using namespace hyperion;

namespace {

VariableLookup variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace

TEST_CASE("the dump folder takes environment variables and the number of the SLURM job") {
  const auto lookup =
      variables({{"SCRATCH", "/scratch/anna"}, {"A_1", "$B %j ${C}"}, {"SLURM_JOB_ID", "4711"}});
  CHECK(expand_variables("${SCRATCH}/run-%j", lookup) == "/scratch/anna/run-4711");
  CHECK(expand_variables("%j%j", lookup) == "47114711");
  CHECK(expand_variables("${A_1}", lookup) == "$B %j ${C}");  // a value is not expanded again
  for (const char* plain : {"", "./outputs", "100%", "50%off", "$HOME/x", "a$", "{SCRATCH}", "%", "$}"})
    CHECK(expand_variables(plain, lookup) == plain);
}

TEST_CASE("a dump folder whose variable is missing is refused with its place and the remedy") {
  const auto refusal = [](const std::string& folder, std::map<std::string, std::string> values) {
    ResolvedConfig resolved = parse_config("[job]\ndump_folder = \"" + folder + "\"\n", "job.toml", {});
    return error_of(ExitCode::kUsage, [&] { expand_dump_folder(resolved, variables(std::move(values))); });
  };
  CHECK(refusal("${SCRATCH}/x", {}) ==
        "job.toml:2:15: job.dump_folder = \"${SCRATCH}/x\": the environment variable SCRATCH is not set: set "
        "it, or "
        "write the value instead");
  CHECK_THAT(refusal("${SCRATCH}", {{"SCRATCH", ""}}), Catch::Contains("SCRATCH is empty"));
  CHECK_THAT(refusal("run-%j", {}), Catch::Contains("%j is the number of a SLURM job, and this is none"));
  for (const char* bad : {"${", "${}", "${A", "x${1A}", "${A B}", "${A-b}"})
    CHECK_THAT(refusal(bad, {{"A", "a"}}), Catch::Contains("expected ${NAME}"));
}
