#include "parallel/pipeline/csv.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;

std::string written(const PipelineSchedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.ranks)
    text += fmt::format("{}\r\n", fmt::join(to_entries(actions), ","));
  return text;
}

// The message for a file that is refused, after its name and key.
std::string refused(std::string_view text, int ranks = 2, int microbatches = 2) {
  try {
    parse_csv_schedule(text, "order.csv", ranks, microbatches);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    const std::string what = error.what(), begin = "order.csv (parallelism.pipeline_parallel_schedule_csv)";
    REQUIRE(what.starts_with(begin));
    return what.substr(begin.size());
  }
  return "";
}

}  // namespace

TEST_CASE("a CSV schedule is read as it was written, with the placement of its rows") {
  for (const PipelineKind kind : {PipelineKind::kInterleavedZeroBubble, PipelineKind::kZbvZeroBubble,
                                  PipelineKind::kDualPipeV, PipelineKind::kLoopedBfs}) {
    const PipelineSchedule schedule = make_schedule(kind, {4, 2, 8});
    const PipelineSchedule read = parse_csv_schedule(written(schedule), "order.csv", 4, 8);
    CHECK(read.ranks == schedule.ranks);
    CHECK(read.rank_of_stage == schedule.rank_of_stage);
    CHECK(read.microbatches == 8);
  }
}

TEST_CASE("empty cells of a CSV schedule are the bubble, and the last line may end or not") {
  for (const std::string_view text :
       {"0F0,,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n", "0F0,0F1,0B0,0B1\r\n 1F0 ,1B0,1F1,1B1",
        "0F0,0F1,0B0,0B1,,\n,1F0,1B0,1F1,1B1,"}) {
    const PipelineSchedule schedule = parse_csv_schedule(text, "order.csv", 2, 2);
    CHECK(to_entries(schedule.ranks[1]) == std::vector<std::string>{"1F0", "1B0", "1F1", "1B1"});
  }
}

TEST_CASE("broken CSV schedules are refused with row and column") {
  CHECK_THAT(refused("0F0,0F1,0B0,0X1\n1F0,1B0,1F1,1B1\n"),
             Equals(": row 1, column 4: \"0X1\" is no compute action, expected a stage, F, B, I or W, and a "
                    "microbatch, as 2F0"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1RECV_F1,1B0,1F1,1B1\n"),
             Contains("row 2, column 2: \"1RECV_F1\" is no compute"));
  for (const std::string_view added : {"0REDUCE_GRAD", "0UNSHARD", "0RESHARD", "0RECV_B0"})
    CHECK_THAT(refused(fmt::format("0F0,0F1,0B0,0B1,{}\n1F0,1B0,1F1,1B1\n", added)),
               Contains("row 1, column 5") &&
                   Contains("as 2F0; gathers, reductions and transfers are added to the file's order"));
  CHECK_THAT(refused("0F0,0F1,0B0,99999999999B1\n1F0,1B0,1F1,1B1\n"), Contains("row 1, column 4"));
  CHECK_THAT(refused(std::string_view("\x1b[2J\0,0F1\n1F0\n", 14)), Contains("row 1, column 1: \"\\x1b[2J"));
  CHECK_THAT(refused(""), Equals(": row 1: there is no action"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n,,,\n"), Equals(": row 2: there is no action"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n"), Contains(" has 1 rows, expected 2"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2F1,2B0,2B1\n"),
             Contains(" has 3 rows, expected 2"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n"), Contains(" has stage 2 (row 2) but no stage 1"));
}

TEST_CASE("CSV schedules that are incomplete, contradictory or wait for themselves are refused") {
  // incomplete
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"), Equals(": row 2: 1B1 is missing"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1B1\n"), Equals(": row 2: 1W0 is missing"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2, 3), Equals(": row 1: 0F2 is missing"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", 2, 1000000000),
             Equals(" has 8 actions for 2 stages, expected a forward and a backward of each on 1000000000 "
                    "microbatches"));
  // contradictory
  CHECK_THAT(refused("0F0,,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
             Equals(": row 1, column 4: 0F1 is there twice"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1F0,0B1,1B0,1F1,1B1\n"),
             Equals(": row 2, column 2: 0B1: stage 0 is on rank 0, and a stage is on one rank"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n"),
             Equals(": row 2, column 1: 1B0 comes before 1F0"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1,0F2\n1F0,1B0,1F1,1B1\n"),
             Equals(": row 1, column 5: 0F2: there is no microbatch 2, the last one is 1"));
  CHECK_THAT(refused("0F0,0F1,0B0,0B1\n(1F0;1F1)OVERLAP_F_B,1B0,(1F1;1B1)OVERLAP_F_B\n"),
             Equals(": row 2, column 3: 1F1 is there twice"));
  // waiting for itself
  CHECK_THAT(
      refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"),
      Contains(": row 1, column 2: the action is never reached: 0B0 waits for the backward of stage 1 on "
               "microbatch 0, which rank 1 runs after 1F1, where 1F1 waits for the forward of stage 0"));
}

}  // namespace hyperion::parallel
