#include "app/report/page.h"

#include <catch2/catch.hpp>

#include "rows.h"

namespace hyperion::report {
namespace {

// A run in which everything that can come from outside tries to be a script.
ReportRun hostile_run(const std::string& attack) {
  std::string json;
  for (const char c : attack) json += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  MetricParser parser;
  ReportRun run;
  run.name = run.folder = attack;
  run.history = history_of({training_line(1, 1, 1, ", \"" + json + "\": 3, \"run_id\": \"" + json + "\""),
                            "{\"step\": 1, \"time\": 2, \"event\": \"" + json + "\", \"" + json + "\": \"" +
                                json + "\", \"n\": 1}"},
                           parser);
  run.tags = parser.tags();
  run.starts.starts.push_back(
      {attack, {{attack, attack}, {"job.description", attack}}, {{"command", attack}, {"host", attack}}});
  run.starts.starts.push_back(
      {attack, {{attack, "2"}}, {{"ranks", attack}, {"commit", attack}, {"start", attack}}});
  run.starts.count = 2;
  run.starts.newest_record = attack;
  run.starts.problems.push_back(attack);
  return run;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

}  // namespace

TEST_CASE("Nothing from outside becomes markup or script wherever it stands") {
  const std::string harmless = report_page({hostile_run("x"), hostile_run("y")}, 10);
  for (const char* attack : {"<script>alert(1)</script>", "</script><script>alert(1)</script>", "</style><b>",
                             "\"><img src=x onerror=alert(1)>", "' onload='x", "--><svg onload=x>"}) {
    ReportRun other = hostile_run(attack);
    other.starts.starts.back().settings["more"] = attack;
    const std::string page = report_page({hostile_run(attack), other}, 10);
    CHECK(count(page, attack) == 0);
    CHECK(count(page, "<script") == count(harmless, "<script"));
    CHECK(count(page, "<img") == 0);
    CHECK(count(page, "<b>") == 0);
    CHECK(count(page, "&lt;") + count(page, "&#39;") > 0);
  }
}

TEST_CASE("A figure that the script compares with the baseline names the plot of its values") {
  MetricParser parser;
  ReportRun run;
  run.history = history_of(
      {training_line(1, 1, 1,
                     R"x(, "grad_norm": 1, "lr": 1, "throughput(tps)": 1, "time_metrics/end_to_end(s)": 1, )x"
                     R"x("memory/max_reserved(GiB)": 1)x"),
       R"({"step": 1, "time": 2, "validation_metrics/loss": 1})"},
      parser);
  run.tags = parser.tags();
  const std::string page = report_page({run}, 10, {.baseline = 0, .ratio = true, .refresh = 2.5});
  const std::string mark = "data-plot=\"";
  size_t named = 0;
  for (size_t at = page.find(mark); at != page.npos; at = page.find(mark, at + 1)) {
    const size_t begin = at + mark.size();
    const std::string title = page.substr(begin, page.find('"', begin) - begin);
    CAPTURE(title);
    CHECK(count(page, "aria-label=\"" + title + "\"") == 1);
    ++named;
  }
  CHECK(named == 7);
  CHECK(count(page, R"("baseline":0,"ratio":true,"refresh":2.5)") == 1);
}

TEST_CASE("A page of runs without a line says so") {
  ReportRun run;
  run.name = "queued";
  CHECK(count(report_page({run, run}, 10), "no metrics yet") == 2);
}

TEST_CASE("A page of many runs of a million steps stays under a few megabytes") {
  std::vector<ReportRun> runs;
  for (int i = 0; i < 3; ++i) {
    MetricParser parser;
    ReportRun run;
    run.name = "run " + std::to_string(i);
    run.history = RunHistory(buckets_per_run(3));
    std::string more;
    for (int tag = 0; tag < 30; ++tag) more += ", \"metric" + std::to_string(tag) + "\": 1.2345678";
    for (int64_t step = 1; step <= 20000; ++step)
      run.history.add(
          *parser.parse(training_line(step * 50, 2.3456789, 1.7e9 + static_cast<double>(step), more)));
    run.tags = parser.tags();
    runs.push_back(std::move(run));
  }
  CHECK(report_page(runs, 1.8e9).size() < 4'000'000);
}

}  // namespace hyperion::report
