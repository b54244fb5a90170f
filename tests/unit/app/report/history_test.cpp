#include "app/report/history.h"

#include <catch2/catch.hpp>

#include "rows.h"

namespace hyperion::report {

using Line = std::vector<std::pair<double, double>>;

TEST_CASE("Of a step that a restart made again the newer row counts and the older one is kept apart") {
  MetricParser parser;
  const RunHistory history =
      history_of({training_line(1, 9, 1), training_line(2, 8, 2), training_line(3, 7, 3),
                  training_line(4, 6, 4),  // crash; resumed from step 2
                  training_line(3, 7.5, 10), training_line(4, 6.5, 11), training_line(5, 5, 12)},
                 parser);
  CHECK(line_of(history.current(RowKind::kTraining), kLossTag) ==
        Line{{1, 9}, {2, 8}, {3, 7.5}, {4, 6.5}, {5, 5}});
  CHECK(line_of(history.superseded(RowKind::kTraining), kLossTag) == Line{{3, 7}, {4, 6}});
  REQUIRE(history.attempt_count() == 2);
  CHECK(history.attempts()[0].first_step == 3);
  CHECK(history.attempts()[0].last_step == 5);
  CHECK(history.attempts()[1].first_time == 1);
  CHECK(history.newest(RowKind::kTraining)->step == 5);
}

TEST_CASE("Rows after a later restart to an earlier step are superseded in all older attempts") {
  MetricParser parser;
  const RunHistory history =
      history_of({training_line(1, 1, 1), training_line(5, 1, 2), training_line(4, 2, 3),
                  training_line(8, 2, 4), training_line(3, 3, 5)},
                 parser);
  CHECK(line_of(history.current(RowKind::kTraining), kLossTag) == Line{{1, 1}, {3, 3}});
  CHECK(history.attempt_count() == 3);
}

TEST_CASE("A validation after its step is no restart and the same step again is one") {
  const std::string validation = R"({"step": 10, "time": 3, "validation_metrics/loss": 2})";
  MetricParser parser;
  CHECK(history_of({training_line(10, 1, 1), validation, training_line(20, 1, 4)}, parser).attempt_count() ==
        1);
  const RunHistory again = history_of({training_line(10, 1, 1), validation, training_line(10, 5, 4)}, parser);
  CHECK(again.attempt_count() == 2);
  CHECK(again.current(RowKind::kValidation).empty());
  CHECK_FALSE(again.superseded(RowKind::kValidation).empty());
}

TEST_CASE("The step that a resume names supersedes rows before the first one that was logged") {
  MetricParser parser;
  // logged at 6 to 8; resumed from 5, logging each tenth step
  const RunHistory history =
      history_of({training_line(6, 1, 1), training_line(7, 1, 2), training_line(8, 1, 3),
                  training_line(10, 2, 4, R"(, "resume/step": 5)")},
                 parser);
  CHECK(line_of(history.current(RowKind::kTraining), kLossTag) == Line{{10, 2}});
  CHECK(history.attempts()[0].first_step == 6);
}

TEST_CASE("Another run id is another start even where the steps go on") {
  MetricParser parser;
  const RunHistory history =
      history_of({training_line(1, 1, 1, R"(, "run_id": "a")"), training_line(2, 1, 2, R"(, "run_id": "b")"),
                  training_line(3, 1, 3, R"(, "run_id": "b")")},
                 parser);
  CHECK(history.attempt_count() == 2);
  CHECK(history.current(RowKind::kTraining).buckets().size() == 3);
}

TEST_CASE("A start that has not logged a step yet supersedes the steps after the one it begins from") {
  MetricParser parser;
  const RunHistory history =
      history_of({training_line(1, 1, 1, R"(, "run_id": "a")"), training_line(2, 1, 2, R"(, "run_id": "a")"),
                  training_line(3, 1, 3, R"(, "run_id": "a")"),
                  R"({"step": 2, "time": 4, "run_id": "b", "event": "start"})"},
                 parser);
  CHECK(line_of(history.current(RowKind::kTraining), kLossTag) == Line{{1, 1}, {2, 1}});
  CHECK(line_of(history.superseded(RowKind::kTraining), kLossTag) == Line{{3, 1}});
}

TEST_CASE("An event written late by a background save is no restart") {
  MetricParser parser;
  const RunHistory history =
      history_of({training_line(10, 1, 1), training_line(11, 1, 2),
                  R"({"step": 10, "time": 3, "event": "checkpoint_durable", "write_seconds": 2})",
                  training_line(12, 1, 4)},
                 parser);
  CHECK(history.attempt_count() == 1);
  CHECK(history.event_count() == 1);
}

TEST_CASE("The first step with a loss that is not finite is named") {
  MetricParser parser;
  const RunHistory history = history_of({training_line(1, 1, 1), R"({"step":2,"time":2,"grad_norm":"NaN"})",
                                         R"({"step":3,"time":2,"loss_metrics/global_avg_loss":"Infinity"})"},
                                        parser);
  CHECK(history.first_non_finite_step() == 2);
}

TEST_CASE("Ten thousand restarts are counted and the newest kept") {
  MetricParser parser;
  std::vector<std::string> lines;
  for (int i = 0; i < 10000; ++i) lines.push_back(training_line(1, i, i));
  const RunHistory history = history_of(lines, parser);
  CHECK(history.attempt_count() == 10000);
  CHECK(history.attempts().size() == RunHistory::kMaxAttempts);
  CHECK(line_of(history.current(RowKind::kTraining), kLossTag) == Line{{1, 9999}});
}

}  // namespace hyperion::report
