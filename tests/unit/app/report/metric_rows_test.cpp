#include "app/report/metric_rows.h"

#include <cmath>
#include <string>

#include <catch2/catch.hpp>

namespace hyperion::report {

TEST_CASE("A line of metrics becomes a row of its numbers") {
  MetricParser parser;
  const auto row = parser.parse(
      R"({"step": 10, "time": 1.5, "run_id": "a", "loss_metrics/global_avg_loss": 4.25, "grad_norm": "NaN", "lr": 1})");
  REQUIRE(row);
  CHECK(row->step == 10);
  CHECK(row->kind == RowKind::kTraining);
  CHECK(row->run_id == "a");
  CHECK(row->value(kLossTag) == 4.25);
  CHECK(std::isnan(row->value(kGradNormTag).value()));
  CHECK(row->value(parser.tag("lr").value()) == 1);
  CHECK_FALSE(parser.tag("never met"));
  const auto validation = parser.parse(R"({"step": 10, "time": 2, "validation_metrics/loss": "-Infinity"})");
  REQUIRE(validation);
  CHECK(validation->kind == RowKind::kValidation);
  CHECK(validation->value(kValidationLossTag) == -INFINITY);
}

TEST_CASE("An event keeps its fields in words and its numbers under the event's name") {
  MetricParser parser;
  const auto row = parser.parse(
      R"({"step": 4, "time": 2, "event": "checkpoint_durable", "kind": "<full>", "write_seconds": 1.5})");
  REQUIRE(row);
  CHECK(row->kind == RowKind::kEvent);
  CHECK(row->event == "checkpoint_durable");
  CHECK(row->details == "<full>, write 1.5 s");
  CHECK(parser.parse(R"({"step":9,"time":3,"event":"end","reason":"completed","exit_code":0})")->details ==
        "completed, exit code 0");
  CHECK(parser.parse(R"({"step":9,"time":3,"event":"e","bytes":12345678,"resumed_from":"a_b","x":[1]})")
            ->details == "bytes 12,345,678, resumed from a_b, x [1]");
  CHECK(row->value(parser.tag("checkpoint_durable.write_seconds").value()) == 1.5);
  // an event is no training row, whatever its fields are called
  CHECK(parser.parse(R"({"step":1,"time":1,"event":"e","loss_metrics/global_avg_loss":1})")->kind ==
        RowKind::kEvent);
}

TEST_CASE("Lines that are no row of metrics are refused") {
  MetricParser parser;
  for (const char* line :
       {"", "{", "[]", "3", "null", "{}", R"({"step": 1})", R"({"time": 1})", R"({"step": -1, "time": 1})",
        R"({"step": 1.5, "time": 1})", R"({"step": "1", "time": 1})", R"({"step": 1, "time": "NaN"})",
        R"({"step": 1e30, "time": 1})", R"({"step": 9007199254740993, "time": 1})",
        R"({"step": 1, "time": 1)", R"({"step": 1, "time": 1} x)", "{\"step\": 1, \"time\": 1, \"\xFF\": 2}",
        R"({"step": 1, "time": 1e999})"})
    CHECK_FALSE(parser.parse(line));
  CHECK_FALSE(parser.parse(std::string(100000, '[')));
  CHECK(parser.parse(R"({"step": 1, "time": 1, "x": [[{"y": null}]], "z": true})"));
}

TEST_CASE("More different names than a report keeps are left out and counted") {
  MetricParser parser;
  for (size_t i = 0; i < 2 * MetricParser::kMaxTags; ++i)
    CHECK(parser.parse("{\"step\": 1, \"time\": 1, \"tag" + std::to_string(i) + "\": 1}"));
  CHECK(parser.tags().size() == MetricParser::kMaxTags);
  CHECK(parser.tags_left_out() == MetricParser::kMaxTags + kKnownTags);
  CHECK(parser.parse(R"({"step": 2, "time": 1, "grad_norm": 3})")->value(kGradNormTag) == 3);
}

}  // namespace hyperion::report
