#include "trainer/metrics/metrics_jsonl.h"

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::metrics {

TEST_CASE("A metrics line is JSON that keeps full precision and names non-finite numbers") {
  const double third = 1.0 / 3, infinity = std::numeric_limits<double>::infinity();
  const auto line =
      json_line({7, 1771588800.125, "20260220-120000"}, {{"loss_metrics/global_avg_loss", third},
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
  CHECK(json["run_id"] == "20260220-120000");
  CHECK(json["loss_metrics/global_avg_loss"].get<double>() == third);
  CHECK(json["tiny"].get<double>() == 5e-324);
  CHECK(json["huge"].get<double>() == 1.7976931348623157e308);
  CHECK(json["n_tokens_seen"].get<double>() == 9007199254740991.0);
  CHECK(json["nan"] == "NaN");
  CHECK(json["up"] == "Infinity");
  CHECK(json["down"] == "-Infinity");
  CHECK(json["odd \"tag\"\\\n"] == -0.5);
}

TEST_CASE("An event is a line with its name and its fields as JSON") {
  const auto line = json_line({3, 1.5, "run \"1\""}, {{"event", std::string("checkpoint_durable")},
                                                      {"kind", std::string("full")},
                                                      {"bytes", std::numeric_limits<int64_t>::max()},
                                                      {"write_seconds", 0.25},
                                                      {"worst", std::nan("")}});
  const auto json = nlohmann::json::parse(line);
  CHECK(json["step"] == 3);
  CHECK(json["run_id"] == "run \"1\"");
  CHECK(json["event"] == "checkpoint_durable");
  CHECK(json["kind"] == "full");
  CHECK(json["bytes"] == std::numeric_limits<int64_t>::max());
  CHECK(json["write_seconds"] == 0.25);
  CHECK(json["worst"] == "NaN");
}

TEST_CASE("Lines that several threads append stay whole") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    JsonlWriter writer(path);
    const auto append = [&writer](int64_t thread) {
      for (int64_t step = 0; step < 500; ++step)
        writer.append(json_line({step, 0, "r"}, {{"thread", thread}}));
    };
    std::jthread other(append, 1);
    append(2);
  }
  std::istringstream text(read_file(path));
  int64_t lines = 0;
  for (std::string line; std::getline(text, line); ++lines) CHECK(nlohmann::json::accept(line));
  CHECK(lines == 1000);
}

TEST_CASE("A metrics file is appended to and a line that a crash cut off is ended first") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "a" / "metrics.jsonl";
  { JsonlWriter(path).append("{\"step\": 1}\n"); }
  { std::ofstream(path, std::ios::app) << "{\"step\": 2, \"ti"; }
  JsonlWriter writer(path);
  writer.append(json_line({2, 0, "r"}, {{"x", 1}}));
  CHECK(
      read_file(path) ==
      "{\"step\": 1}\n{\"step\": 2, \"ti\n{\"step\": 2, \"time\": 0.000000, \"run_id\": \"r\", \"x\": 1}\n");
}

TEST_CASE(
    "A run that continues no other begins a file of its own, and keeps the earlier one by its run's name") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const auto write = [&](const std::string& run, EarlierLines earlier) {
    JsonlWriter(path, earlier).append(json_line({1, 0, run}, {{"x", 1}}));
  };
  write("20260101-120000", EarlierLines::kOfOthers);
  write("20260101-120001", EarlierLines::kContinued);
  const std::string both = read_file(path);
  write("20260101-120001", EarlierLines::kOfOthers);
  CHECK(read_file(folder.path() / "metrics-20260101-120001.jsonl") == both);
  write("../../victim", EarlierLines::kOfOthers);
  CHECK(read_file(folder.path() / "metrics-20260101-120001-2.jsonl") ==
        json_line({1, 0, "20260101-120001"}, {{"x", 1}}));
  write("20260101-120003", EarlierLines::kOfOthers);
  CHECK(read_file(folder.path() / "metrics-earlier.jsonl") == json_line({1, 0, "../../victim"}, {{"x", 1}}));
  CHECK(read_file(path) == json_line({1, 0, "20260101-120003"}, {{"x", 1}}));
}

TEST_CASE("A file that another run writes is refused, naming that run and the key, until it ends") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  require_no_writer(path);
  std::optional<JsonlWriter> first(std::in_place, path);
  CHECK_THROWS_WITH(require_no_writer(path),
                    Catch::Contains("another run is training") && Catch::Contains("job.dump_folder"));
  first->append(json_line({1, 0, "20260101-120000"}, {{"x", 1}}));
  CHECK_THROWS_WITH(require_no_writer(path), Catch::Contains("run 20260101-120000 is training"));
  CHECK_THROWS_WITH(JsonlWriter(path, EarlierLines::kOfOthers),
                    Catch::Contains("run 20260101-120000 is training"));
  first.reset();
  require_no_writer(path);
  const JsonlWriter second(path);
}

TEST_CASE("A link in the place of the metrics file is refused and what it leads to is left alone") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl", victim = folder.path() / "victim";
  { std::ofstream(victim) << "precious"; }
  std::filesystem::create_symlink(victim, path);
  CHECK_THROWS_WITH(JsonlWriter(path),
                    Catch::Contains("is a symbolic link") && Catch::Contains("move it away"));
  CHECK(read_file(victim) == "precious");
}

TEST_CASE("A pipe or a device in the place of the metrics file is refused") {
  test::TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(JsonlWriter(pipe), Catch::Contains("pipe: is a named pipe"));
  CHECK_THROWS_WITH(JsonlWriter("/dev/null"), Catch::Contains("/dev/null: is a device"));
}

TEST_CASE("A full disk ends the metrics file but not the run") {
  test::TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  JsonlWriter writer(path);
  writer.append("1\n");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit full = {2, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
  writer.append("2\n");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  writer.append("3\n");
  CHECK(read_file(path) == "1\n");
}

}  // namespace hyperion::metrics
