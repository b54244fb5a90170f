#include "trainer/metrics/metrics_jsonl.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "temporary_folder.h"

using namespace hyperion;

TEST_CASE("A metrics line is JSON that keeps full precision and names non-finite numbers") {
  const double third = 1.0 / 3, infinity = std::numeric_limits<double>::infinity();
  const auto line = json_line(7, 1771588800.125,
                              {{"loss_metrics/global_avg_loss", third},
                               {"tiny", 5e-324},
                               {"huge", 1.7976931348623157e308},
                               {"n_tokens_seen", 9007199254740991.0},
                               {"nan", std::nan("")},
                               {"up", infinity},
                               {"down", -infinity},
                               {"odd \"tag\"\\\n", -0.5}});
  REQUIRE(line.back() == '\n');
  REQUIRE(line.find('\n') == line.size() - 1);
  const auto json = nlohmann::json::parse(line);
  CHECK(json["step"] == 7);
  CHECK(json["time"] == 1771588800.125);
  CHECK(json["loss_metrics/global_avg_loss"].get<double>() == third);
  CHECK(json["tiny"].get<double>() == 5e-324);
  CHECK(json["huge"].get<double>() == 1.7976931348623157e308);
  CHECK(json["n_tokens_seen"].get<double>() == 9007199254740991.0);
  CHECK(json["nan"] == "NaN");
  CHECK(json["up"] == "Infinity");
  CHECK(json["down"] == "-Infinity");
  CHECK(json["odd \"tag\"\\\n"] == -0.5);
}

TEST_CASE("A metrics file is appended to and a line that a crash cut off is ended first") {
  TemporaryFolder folder;
  const auto path = folder.path() / "a" / "metrics.jsonl";
  { JsonlWriter(path).write(1, 0, {}); }
  { std::ofstream(path, std::ios::app) << "{\"step\": 2, \"ti"; }
  JsonlWriter writer(path);
  writer.write(2, 0, {{"x", 1}});
  CHECK(
      read_file(path) ==
      "{\"step\": 1, \"time\": 0.000000}\n{\"step\": 2, \"ti\n{\"step\": 2, \"time\": 0.000000, \"x\": 1}\n");
}

TEST_CASE("A full disk ends the metrics file but not the run") {
  if (!std::filesystem::exists("/dev/full")) return;
  JsonlWriter writer("/dev/full");
  writer.write(1, 0, {});
  writer.write(2, 0, {});
}
