#include "parallel/job/failure_record.h"

#include <filesystem>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "parallel/job/phase.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::parallel {
namespace {

Environment rank_of(int rank, int world_size) {
  Environment environment;
  environment.rank = rank;
  environment.world_size = world_size;
  return environment;
}

}  // namespace

TEST_CASE("the sentence of a failed rank names rank and host and phase") {
  const Environment third = rank_of(3, 8);
  CHECK(failure_sentence(ExitCode::kBadData, "data.jsonl:7: no JSON", third, "n1", "step 5 data") ==
        "rank 3 of 8 on n1 in phase 'step 5 data': data.jsonl:7: no JSON");
  CHECK(failure_sentence(ExitCode::kBadData, "data.jsonl:7: no JSON", third, "n1", "") ==
        "rank 3 of 8 on n1: data.jsonl:7: no JSON");
  CHECK(failure_sentence(ExitCode::kCommunication, "rank 3: all_reduce (number 1 of group world/0) failed",
                         third, "n1",
                         "step 5") == "rank 3 of 8 on n1: all_reduce (number 1 of group world/0) failed");
  // What every rank finds alike before they meet, and a lone rank, need no more than the cause.
  CHECK(failure_sentence(ExitCode::kUsage, "job.toml:3: no such key", third, "n1", "") ==
        "job.toml:3: no such key");
  CHECK(failure_sentence(ExitCode::kBadData, "no JSON", rank_of(0, 1), "n1", "step 5") == "no JSON");
}

TEST_CASE("the phase of a failure is the one in which it was thrown") {
  set_phase("step 1");
  const auto thrown = [](bool caught) {
    try {
      PhaseGuard outer("outer");
      PhaseGuard inner("inner");
      throw std::runtime_error("x");
    } catch (const std::exception&) {
    }
    if (caught) set_phase("step 2");  // the job goes on
    return phase_of_failure();
  };
  CHECK(thrown(false) == "inner");
  CHECK(thrown(true) == "step 2");
  { PhaseGuard done("ended well"); }
  CHECK(phase_of_failure() == "step 2");
  set_phase("");
}

TEST_CASE("what failed before the rank was set is not its own") {
  record_failed_operation({"barrier", 1, "world/0", "start", "of another rank"});
  set_newest_operation("barrier", 1, "world/0");
  set_own_rank({});
  CHECK_FALSE(operation_failed());
  CHECK(newest_operation().empty());
}

TEST_CASE("a failed operation is recorded at once and again with the exit code") {
  const test::TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path() / "records";
  ::setenv("HYPERION_FAILURE_DIR", folder.c_str(), 1);
  set_own_rank(rank_of(2, 4));
  const auto record = [&] { return nlohmann::json::parse(read_file(folder / "rank_2.json")); };
  record_failed_operation({"all_gather", 7, "fsdp/0", "step 3 forward", "rank 1 has ended"});
  CHECK(record()["message"] == "rank 1 has ended");
  record_lost_ranks({1});
  CHECK(record()["lost"] == std::vector<int>{1});
  record_failed_operation({"barrier", 8, "world/0", "end", "a consequence"});
  CHECK(report_failure(ExitCode::kCommunication, "rank 2: all_gather failed \xff") == 71);
  const auto last = record();
  CHECK(last["rank"] == 2);
  CHECK(last["world_size"] == 4);
  CHECK(last["code"] == 71);
  CHECK(last["group"] == "fsdp/0");
  CHECK(last["operation"] == "all_gather");
  CHECK(last["number"] == 7);
  CHECK(last["phase"] == "step 3 forward");
  CHECK(last["lost"] == std::vector<int>{1});
  CHECK(last["message"].get<std::string>().find("all_gather failed") != std::string::npos);
  CHECK(report_failure(ExitCode::kSaveFailed, "no space") == 74);  // not the operation's failure
  CHECK_FALSE(record().contains("group"));
  ::setenv("HYPERION_FAILURE_DIR", "/proc/no/folder", 1);
  CHECK(report_failure(ExitCode::kBug, "still reported") == 70);
  ::unsetenv("HYPERION_FAILURE_DIR");
  set_own_rank({});
}

}  // namespace hyperion::parallel
