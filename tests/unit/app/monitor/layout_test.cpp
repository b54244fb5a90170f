#include "app/monitor/layout.h"

#include <catch2/catch.hpp>

#include "run_files.h"

namespace hyperion::monitor {

using Catch::Contains;

namespace {
std::string shown(const MonitoredRun& state, const View& view) {
  const std::vector<TextLine> lines = layout(state, view);
  if (view.rows > 0) CHECK(static_cast<int>(lines.size()) <= view.rows);
  std::string text;
  for (const TextLine& line : lines) {
    CHECK(columns_of(line) <= view.columns);
    text += plain(line) + "\n";
  }
  return text;
}
}  // namespace

TEST_CASE("A terminal of 80 x 24 shows the facts and two plots, a larger one more of them") {
  const MonitoredRun state = state_of(healthy_run());
  const std::string small = shown(state, {80, 24, true, 2002, "", "q leaves"});
  for (const char* text : {"outputs/run", "running, newest line 2 s ago", "1,000 of 10,000", "tokens/s",
                           "checkpoint", "Loss  5", "Throughput  ", "q leaves"})
    CHECK_THAT(small, Contains(text));
  CHECK_THAT(small, !Contains("Gradient norm"));
  const std::string large = shown(state, {200, 60, true, 2002, "", "q leaves"});
  for (const char* text : {"Loss  5", "Throughput", "Gradient norm", "Step time", "Peak memory"})
    CHECK_THAT(large, Contains(text));
}

TEST_CASE("A small terminal shows the most important facts, a smaller one says that it is too small") {
  const MonitoredRun state = state_of(healthy_run());
  const std::string small = shown(state, {40, 10, true, 2002, "", "q leaves"});
  CHECK_THAT(small, Contains("1,000 of 10,000") && Contains("tokens/s") && !Contains("Throughput  "));
  CHECK_THAT(shown(state, {40, 5, true, 2002, "", "q"}),
             Contains("step") && Contains("loss") && !Contains("memory"));
  CHECK_THAT(shown(state, {19, 10, true, 2002, "", "q"}), Contains("too small"));
  for (int columns = 1; columns < 240; columns += 7)
    for (int rows = 1; rows < 70; rows += 3)
      shown(state, {columns, rows, columns % 2 == 0, 2002, "", "q leaves"});
}

TEST_CASE("Without UTF-8 every byte is ASCII") {
  MonitoredRun state = state_of(healthy_run());
  state.runs.front().name = "größe";
  for (const int rows : {0, 24, 60})
    for (const char byte : shown(state, {100, rows, false, 2002, "", "q leaves"}))
      CHECK((byte == '\n' || (byte >= 0x20 && byte < 0x7F)));
}

TEST_CASE("Text of the run never steers the terminal") {
  const std::string attack = R"(\u001b[2J\u009b31m\r\u0007)";
  MonitoredRun state = state_of(
      training_line(
          1, 9, 1,
          ", \"run_id\": \"" + attack + "\", \"sources/" + attack + "/tokens\": 5, \"" + attack + "\": 3") +
      "{\"step\": 1, \"time\": 2, \"event\": \"checkpoint_failed\", \"message\": \"" + attack + "\"}\n" +
      "{\"step\": 1, \"time\": 3, \"event\": \"end\", \"reason\": \"" + attack + "\", \"exit_code\": 70}\n");
  state.runs.front().name = "a\x1b[2J\x9b";
  for (const int rows : {0, 24, 60})
    for (const unsigned char byte : shown(state, {100, rows, true, 4, "", "q"}))
      CHECK((byte == '\n' || (byte >= 0x20 && byte != 0x7F)));
  CHECK_THAT(shown(state, {100, 0, true, 4}), Contains("a?[2J?") && !Contains("\u009b"));
}

TEST_CASE("A folder without metrics is waited for in one line") {
  const RunFolder folder;
  RunFollower follower(folder.path / "later");
  follower.refresh();
  CHECK(shown(follower.state(), {200, 0, true, 1, "; did you mean x?"}) ==
        "waits for " + (folder.path / "later").string() + "/metrics.jsonl; did you mean x?\n");
}

}  // namespace hyperion::monitor
