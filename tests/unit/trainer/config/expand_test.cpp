#include <cstdlib>
#include <map>

#include <catch2/catch.hpp>

#include "tests/support/error_of.h"
#include "trainer/config/load.h"

namespace hyperion::config {
namespace {

// Environment variables as long as it lives. The names that the tests use are unset otherwise.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const char* name : kNames) ::unsetenv(name);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static constexpr const char* kNames[] = {"SCRATCH", "A", "A_1", "SLURM_JOB_ID", "HOME"};
};

}  // namespace

TEST_CASE("the dump folder takes environment variables and the number of the SLURM job") {
  const Variables set({{"SCRATCH", "/scratch/anna"}, {"A_1", "$B %j ${C}"}, {"SLURM_JOB_ID", "4711"}});
  CHECK(expand_variables("${SCRATCH}/run-%j") == "/scratch/anna/run-4711");
  CHECK(expand_variables("%j%j") == "47114711");
  CHECK(expand_variables("${A_1}") == "$B %j ${C}");  // a value is not expanded again
  for (const char* plain : {"", "./outputs", "100%", "50%off", "$HOME/x", "a$", "{SCRATCH}", "%", "$}"})
    CHECK(expand_variables(plain) == plain);
}

TEST_CASE("a dump folder whose variable is missing is refused with its place and the remedy") {
  const auto refusal = [](const std::string& folder, const std::map<std::string, std::string>& values) {
    const Variables set(values);
    ResolvedConfig resolved = parse_config("[job]\ndump_folder = \"" + folder + "\"\n", "job.toml", {});
    return error_of(ExitCode::kUsage, [&] { expand_dump_folder(resolved); });
  };
  CHECK_THAT(refusal("${SCRATCH}/x", {{"SCRATCH", "s3://bucket"}}),
             Catch::Contains("job.toml:2:15: job.dump_folder = \"s3://bucket/x\": is a URL"));
  CHECK(refusal("${SCRATCH}/x", {}) ==
        "job.toml:2:15: job.dump_folder = \"${SCRATCH}/x\": the environment variable SCRATCH is not set: set "
        "it, or "
        "write the value instead");
  CHECK_THAT(refusal("${SCRATCH}", {{"SCRATCH", ""}}), Catch::Contains("SCRATCH is empty"));
  CHECK_THAT(refusal("run-%j", {}), Catch::Contains("%j is the number of a SLURM job, and this is none"));
  for (const char* bad : {"${", "${}", "${A", "x${1A}", "${A B}", "${A-b}"})
    CHECK_THAT(refusal(bad, {{"A", "a"}}), Catch::Contains("expected ${NAME}"));
}

TEST_CASE("~ in every key that is a path is the home folder") {
  const Variables set(std::map<std::string, std::string>{{"HOME", "/home/anna"}});
  const ResolvedConfig resolved = parse_config(
      "[job]\ndump_folder = \"~/run\"\ndescription = \"~/x\"\n[training]\ndataset_path = \"~/data/*.jsonl\"\n"
      "[model]\nhf_assets_path = \"./~\"\n",
      "job.toml",
      {{"checkpoint.initial_load_path", "~"},
       {"metrics.save_tb_folder", "~/tb"},
       {"parallelism.pipeline_parallel_schedule_csv", "~/a.csv"}});
  CHECK(resolved.config.job.dump_folder == "/home/anna/run");
  CHECK(resolved.config.job.description == "~/x");
  CHECK(resolved.config.training.dataset_path == "/home/anna/data/*.jsonl");
  CHECK(resolved.config.model.hf_assets_path == "./~");
  CHECK(resolved.config.checkpoint.initial_load_path == "/home/anna");
  CHECK(resolved.config.metrics.save_tb_folder == "/home/anna/tb");
  CHECK(resolved.config.parallelism.pipeline_parallel_schedule_csv == "/home/anna/a.csv");
  for (const char* other : {"~anna/run", "~+"})
    CHECK_THAT(error_of(ExitCode::kUsage,
                        [&] {
                          parse_config("", "job.toml", {{"job.dump_folder", other}});
                        }),
               Catch::Contains("job.dump_folder = ") && Catch::Contains("home folder of another user"));
}

}  // namespace hyperion::config
