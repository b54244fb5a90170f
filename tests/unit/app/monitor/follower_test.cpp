#include "app/monitor/follower.h"

#include <catch2/catch.hpp>

#include "run_files.h"

namespace hyperion::monitor {

using report::RowKind;

namespace {
std::vector<double> losses(const MonitoredRun& state) {
  std::vector<double> values;
  for (const auto& [index, bucket] : state.run().history.current(RowKind::kTraining).buckets())
    values.push_back(bucket.range(report::kLossTag).mean());
  return values;
}
}  // namespace

TEST_CASE("A file that grows is read on from where the last refresh ended") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  CHECK_FALSE(follower.refresh());
  CHECK(follower.state().waiting);
  const std::string second = training_line(2, 8, 12);
  folder.append(training_line(1, 9, 10) + second.substr(0, 20));
  follower.refresh();
  CHECK_FALSE(follower.state().waiting);
  CHECK(losses(follower.state()) == std::vector<double>{9});
  folder.append(second.substr(20));
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{9, 8});
  CHECK(follower.state().line_seconds == 2);
  CHECK(follower.state().run().lines == 2);
  CHECK(follower.state().run().bad_lines == 0);
}

TEST_CASE("A refresh reads no more than it may and says that more is left") {
  const RunFolder folder;
  std::string text;
  for (int step = 1; step <= 100; ++step) text += training_line(step, 1, step);
  folder.append(text);
  RunFollower follower(folder.path);
  int refreshes = 1;
  while (follower.refresh(1000)) ++refreshes;
  CHECK(refreshes == static_cast<int>((text.size() + 999) / 1000));
  CHECK(follower.state().run().lines == 100);
  CHECK(follower.state().bytes_read == text.size());
}

TEST_CASE("Steps that a restart makes again replace those of the start before") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  for (int step = 1; step <= 4; ++step)
    folder.append(training_line(step, 10 - step, step, R"(, "run_id": "a")"));
  follower.refresh();
  folder.append(R"({"step": 2, "time": 9, "run_id": "b", "event": "start"})"
                "\n");
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{9, 8});
  folder.append(training_line(3, 5, 10, R"(, "run_id": "b")"));
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{9, 8, 5});
  CHECK(follower.state().run().history.attempt_count() == 2);
}

TEST_CASE("A file that was renamed stays shown until another one begins under its name") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  folder.append(training_line(1, 9, 1) + training_line(2, 8, 2));
  follower.refresh();
  std::filesystem::rename(folder.metrics(), folder.path / "metrics-a.jsonl");
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{9, 8});
  folder.append(training_line(1, 7, 3) + training_line(2, 6, 4) + training_line(3, 5, 5));
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{7, 6, 5});
  CHECK(follower.state().run().history.attempt_count() == 1);
}

TEST_CASE("A file that became shorter, or was rewritten to any length, is read from its start") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  const auto shows = [&](const std::vector<double>& expected) {
    follower.refresh();
    CHECK(losses(follower.state()) == expected);
  };
  folder.append(training_line(1, 9, 1) + training_line(2, 8, 2));
  shows({9, 8});
  folder.replace(training_line(1, 7, 3));
  shows({7});
  folder.replace(training_line(1, 6, 4));
  shows({6});
  folder.replace(training_line(1, 5, 5) + training_line(2, 4, 6) + training_line(3, 3, 7));
  shows({5, 4, 3});
  folder.replace("");
  shows({});
}

TEST_CASE("Torn, long and senseless lines are counted, and a whole last line needs no line feed") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  const std::string last = training_line(3, 7, 3);
  folder.append(training_line(1, 9, 1) + "{\"step\": 2, \"ti\n" + std::string(300000, 'x') +
                "\n\n \nno json\n" + last.substr(0, last.size() - 1));
  follower.refresh(100000);
  while (follower.refresh(100000)) continue;
  CHECK(losses(follower.state()) == std::vector<double>{9, 7});
  CHECK(follower.state().run().lines == 5);
  CHECK(follower.state().run().bad_lines == 3);
  folder.append("\n" + training_line(4, 6, 4) + "{\"step\": 5");
  follower.refresh();
  CHECK(losses(follower.state()) == std::vector<double>{9, 7, 6});
  CHECK(follower.state().run().lines == 6);
  CHECK(follower.state().run().torn_end);
}

TEST_CASE("What is no regular file is refused at first, and later a problem that passes") {
  const RunFolder folder;
  std::filesystem::create_directory(folder.metrics());
  RunFollower refused(folder.path);
  CHECK_THROWS_WITH(refused.refresh(), Catch::Contains("not a regular file"));
  std::filesystem::remove(folder.metrics());
  RunFollower follower(folder.path);
  folder.append(training_line(1, 9, 1));
  follower.refresh();
  std::filesystem::rename(folder.metrics(), folder.path / "kept");
  std::filesystem::create_directory(folder.metrics());
  follower.refresh();
  CHECK_THAT(follower.state().problem, Catch::Contains("not a regular file"));
  std::filesystem::remove(folder.metrics());
  std::filesystem::rename(folder.path / "kept", folder.metrics());
  folder.append(training_line(2, 8, 2));
  follower.refresh();
  CHECK(follower.state().problem.empty());
  CHECK(losses(follower.state()) == std::vector<double>{9, 8});
}

TEST_CASE("Records of new starts are read when they come, for a rank's folder those of its run") {
  const RunFolder folder;
  RunFollower follower(folder.path);
  folder.record("a", "[training]\nmax_norm = 1.0\n");
  folder.append(training_line(1, 9, 1, R"(, "run_id": "a", "grad_norm": 2)"));
  follower.refresh();
  CHECK(follower.state().run().starts.count == 1);
  folder.record("b", "[training]\nmax_norm = 3.0\n");
  folder.append(training_line(2, 9, 2, R"(, "run_id": "b", "grad_norm": 2)"));
  follower.refresh();
  CHECK(follower.state().run().starts.count == 2);
  const auto& buckets = follower.state().run().history.current(RowKind::kTraining).buckets();
  CHECK(buckets.begin()->second.range(report::kClippedTag).mean() == 1);
  CHECK(buckets.rbegin()->second.range(report::kClippedTag).mean() == 0);

  std::filesystem::create_directory(folder.path / "rank_1");
  std::ofstream(folder.path / "rank_1" / "metrics.jsonl") << training_line(1, 9, 1);
  RunFollower of_rank((folder.path / "rank_1/").string());
  of_rank.refresh();
  CHECK(of_rank.state().run().starts.count == 2);
}

}  // namespace hyperion::monitor
