#include "app/monitor/summary.h"

#include <catch2/catch.hpp>
#include <fmt/ranges.h>

#include "run_files.h"

namespace hyperion::monitor {

using Catch::Contains;

namespace {
std::string fact(const Summary& summary, const std::string& label) {
  for (const Fact& fact : summary.facts) {
    if (fact.label != label) continue;
    std::string text;
    for (const Span& part : fact.parts) text += (text.empty() ? "" : "; ") + part.text;
    return text;
  }
  return "";
}
std::string warnings(const std::string& lines, double now) {
  std::string text;
  for (const Span& warning : summarize(state_of(lines), now, true).warnings) text += warning.text + "\n";
  return text;
}
std::string row(const std::string& more) {
  return training_line(1, 9, 1) + training_line(2, 8, 2, more);
}
}  // namespace

TEST_CASE("A healthy run is described without a warning") {
  const Summary summary = summarize(state_of(healthy_run()), 2002, true);
  CHECK(summary.condition.text == "running, newest line 2 s ago");
  CHECK(fact(summary, "step") == "1,000 of 10,000; 10.0 %; 2 h 29 min to go; 1M tokens");
  CHECK_THAT(fact(summary, "loss"), Contains("5") && Contains("lr 0.0003"));
  CHECK(fact(summary, "speed") == "6,020 tokens/s per rank; MFU 36.1 %; 48,160 of 8 ranks");
  CHECK(fact(summary, "step time") == "1 s; 0.3 % waiting for data");
  CHECK(fact(summary, "memory") == "47.6 GiB peak (50.2 %)");
  CHECK(fact(summary, "checkpoint") ==
        "step 900 1 min 37 s ago; 1.00 GiB written in 3.2 s; training waited 0.1 s");
  CHECK(summary.progress == 0.1);
  CHECK(summary.warnings.empty());
}

TEST_CASE("A run without a line for three logged steps is late, one that has ended or starts again is not") {
  CHECK(warnings(healthy_run(), 2029).empty());
  CHECK_THAT(warnings(healthy_run(), 2031), Contains("no new line for 31 s, where one comes every 10 s"));
  CHECK(
      warnings(healthy_run() +
                   R"j({"step": 1000, "time": 2001, "event": "end", "reason": "completed", "exit_code": 0})j",
               9000)
          .empty());
  CHECK(warnings(healthy_run() + R"j({"step": 900, "time": 2001, "event": "start"})j", 9000).empty());
}

TEST_CASE("A run with one logged step is late after three times metrics.log_freq steps") {
  const std::string first = R"j({"step": 1, "time": 1001, "loss_metrics/global_avg_loss": 9, )j"
                            R"j("time_metrics/end_to_end(s)": 2, "run_id": "a"})j";
  CHECK(warnings(first, 1060).empty());
  CHECK_THAT(warnings(first, 1062), Contains("no new line for 61 s, where one comes every 20 s at most") ||
                                        Contains("no new line for 1 min"));
}

TEST_CASE("An end with a failure is a warning, and a save that failed too") {
  CHECK_THAT(
      warnings(
          healthy_run() +
              R"j({"step": 1000, "time": 2001, "event": "end", "reason": "out of memory", "exit_code": 72})j",
          2002),
      Contains("ended: out of memory, exit code 72"));
  CHECK_THAT(
      warnings(healthy_run() +
                   R"j({"step": 950, "time": 2001, "event": "checkpoint_failed", "message": "disk full"})j",
               2002),
      Contains("1 save failed, the newest at step 950: disk full"));
}

TEST_CASE("Counters of GPUs, slow ranks, idle experts and non-finite numbers are warnings") {
  CHECK_THAT(warnings(row(R"j(, "gpu/ecc_uncorrected": 2, "gpu/throttled_ranks/thermal": 1)j"), 3),
             Contains("2 uncorrected memory (ECC) errors") && Contains("1 rank throttled (thermal)"));
  CHECK_THAT(warnings(row(R"j(, "stragglers/slowest_rank": 3, "stragglers/own_time_max(s)": 1.3,)j"
                          R"j( "stragglers/own_time_median(s)": 1, "stragglers/slowest_over_median": 1.3)j"),
                      3),
             Contains("rank 3 works 1.3 x as long"));
  CHECK_THAT(
      warnings(row(R"j(, "experts/idlest_over_mean": 0, "experts/idlest": 7, "experts/worst_layer": 2)j"), 3),
      Contains("expert 7 of block 2 got no token"));
  CHECK_THAT(
      warnings(training_line(1, 9, 1) + R"j({"step": 2, "time": 2, "loss_metrics/global_avg_loss": "NaN"})j",
               3),
      Contains("not finite, first at step 2"));
  CHECK_THAT(warnings(training_line(1, 9, 1) + "junk\n", 2), Contains("1 of 2 lines"));
}

TEST_CASE("Ranks, experts, stages and sources have a line each") {
  const Summary summary = summarize(
      state_of(row(
          R"j(, "time_metrics/end_to_end(s)": 1.5, "stragglers/slowest_rank": 3, "stragglers/own_time_max(s)": 1.05,)j"
          R"j( "stragglers/own_time_median(s)": 1, "experts/busiest": 5, "experts/busiest_over_mean": 1.8,)j"
          R"j( "experts/idlest": 2, "experts/idlest_over_mean": 0.5, "experts/worst_layer": 4, "pipeline/bubble": 0.2,)j"
          R"j( "pipeline/planned_bubble": 0.15, "pipeline/slowest_rank": 1, "pipeline/slowest_over_mean": 1.1,)j"
          R"j( "sources/web/tokens": 75, "sources/code/tokens": 25, "sources/web/loss": 3.5)j")),
      3, true);
  CHECK(fact(summary, "step time") ==
        "1.5 s; slowest rank 3 works 1.05 s; 1.05 x the median; the median rank waits 0.5 s for others");
  CHECK(fact(summary, "experts") == "busiest 5 has 1.8 x the mean; idlest 2 0.5 x; in block 4");
  CHECK(fact(summary, "pipeline") == "bubble 20 %; planned 15 %; slowest stages of rank 1, 1.1 x the mean");
  CHECK(fact(summary, "sources") == "web 75 % loss 3.5; code 25 %");
}

}  // namespace hyperion::monitor
