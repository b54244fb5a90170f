// Which checkpoint a job starts from, over folders as jobs leave them.
#include "trainer/checkpointing/start.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/support/error_of.h"
#include "tests/unit/checkpoint/tools/fixture.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

using Catch::Contains;
namespace fs = std::filesystem;

namespace {

config::JobConfig config(const std::vector<config::Override>& overrides = {}) {
  return config::parse_config("[training]\nsteps = 10\n[checkpoint]\nenable = true\n", "job.toml", overrides)
      .config;
}

// choose_start() on two ranks, which must agree. `folder`: of the job's checkpoints.
StartingPoint start_in(const fs::path& folder, const config::JobConfig& config) {
  std::vector<StartingPoint> starts(2);
  test::ThreadRanks::run(2, [&](Coordinator& ranks) {
    starts[static_cast<size_t>(ranks.rank())] =
        choose_start(config, checkpoint::CheckpointFolder(folder), "/", ranks);
  });
  CHECK(starts[0].checkpoint.has_value() == starts[1].checkpoint.has_value());
  if (starts[0].checkpoint) CHECK(starts[0].checkpoint->path == starts[1].checkpoint->path);
  CHECK(starts[0].finished.has_value() == starts[1].finished.has_value());
  return std::move(starts[0]);
}

// "step-4", "finished step-10", "new weights".
std::string decision(const fs::path& folder, const config::JobConfig& config) {
  const StartingPoint start = start_in(folder, config);
  if (start.checkpoint) return start.checkpoint->path.filename().string();
  if (start.finished) return "finished " + start.finished->path.filename().string();
  return "new weights";
}

// Its index can no longer be decoded; names and sizes stay.
void damage(const fs::path& checkpoint) {
  std::fstream file(checkpoint / ".metadata", std::ios::in | std::ios::out | std::ios::binary);
  file.write("damaged!", 8);
}

void save(const fs::path& folder, int64_t step,
          checkpoint::CheckpointKind kind = checkpoint::CheckpointKind::kFull) {
  checkpoint::ToyOptions options;
  options.kind = kind;
  options.without = {"ema.tok_embeddings.weight"};
  checkpoint::save_toy(folder, step, options);
}

const config::Override kStop = {"checkpoint.on_corrupt", "error"};

}  // namespace

TEST_CASE("a job starts from the newest checkpoint that every rank can open") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  CHECK(decision(folder, config()) == "new weights");
  for (const int64_t step : {2, 4, 6}) save(folder, step);
  CHECK(decision(folder, config()) == "step-6");
  CHECK(decision(folder, config({{"checkpoint.load_step", "2"}})) == "step-2");
  fs::create_directory(folder / ".incoming-1-9");
  fs::create_directory(folder / "step-8");  // holds nothing
  CHECK(decision(folder, config()) == "step-6");
}

TEST_CASE(
    "from damaged checkpoints a job goes back to the one before unless its configuration says otherwise") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  for (const int64_t step : {2, 4, 6}) save(folder, step);
  damage(folder / "step-6");
  CHECK(decision(folder, config()) == "step-4");
  damage(folder / "step-4");
  CHECK(decision(folder, config()) == "step-2");
  CHECK_THAT(error_of(ExitCode::kBadData,
                      [&] {
                        decision(folder, config({{"checkpoint.load_step", "4"}}));
                      }),
             Contains("step-4"));
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { decision(folder, config({kStop})); }), Contains("step-6"));
  damage(folder / "step-2");
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { decision(folder, config()); }), Contains("step-2"));
}

TEST_CASE("a checkpoint with an index per rank that lost one of them is damaged as any other") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  save(folder, 4);
  fs::create_directory(folder / "step-6");
  for (const char* name : {"__0.metadata", "__0_0.distcp", "__1_0.distcp"})
    std::ofstream(folder / "step-6" / name) << "content";
  CHECK(decision(folder, config()) == "step-4");
  const StartingPoint start = start_in(folder, config());
  CHECK_THAT(explain_newer_checkpoints(start, checkpoint::CheckpointFolder(folder), 4, 10),
             Contains("step-6 (damaged)"));
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { decision(folder, config({kStop})); }),
             Contains("step-6 is damaged") && Contains("__1.metadata: is missing"));
}

TEST_CASE("an incompatible checkpoint is not left for an older one") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  for (const int64_t step : {2, 4}) save(folder, step);
  const config::JobConfig averages = config({{"ema.enable", "true"}, {"ema.on_missing", "error"}});
  CHECK_THROWS_AS(start_in(folder, averages), IncompatibleCheckpoint);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { start_in(folder, averages); }),
             Contains("step-4: ema.enable = true, but the checkpoint holds no averaged weights"));
}

TEST_CASE("weights of the last step alone end a run that has no steps left and are passed over otherwise") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  save(folder, 8);
  save(folder, 10, checkpoint::CheckpointKind::kModel);
  const StartingPoint start = start_in(folder, config());
  REQUIRE(start.finished);
  CHECK(start.finished->step == 10);
  CHECK(start.finished->resumable_step == 8);
  CHECK(decision(folder, config({{"training.steps", "12"}})) == "step-8");
  CHECK(decision(folder, config({{"checkpoint.load_step", "8"}})) == "step-8");
}

TEST_CASE("a load that fails goes back to an older checkpoint from damage alone") {
  const test::TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  for (const int64_t step : {2, 4, 6}) save(folder, step);
  damage(folder / "step-4");
  SoloCoordinator alone;
  const config::JobConfig job = config();
  StartingPoint start = choose_start(job, checkpoint::CheckpointFolder(folder), "/", alone);
  CHECK_FALSE(fall_back_to_older(job, start, IncompatibleCheckpoint("other shapes"), alone));
  CHECK_FALSE(fall_back_to_older(config({kStop}), start, Error(ExitCode::kBadData, "checksum"), alone));
  CHECK(start.checkpoint->path.filename() == "step-6");
  CHECK(fall_back_to_older(job, start, Error(ExitCode::kBadData, "checksum"), alone));
  CHECK(start.checkpoint->path.filename() == "step-2");
  CHECK_FALSE(fall_back_to_older(job, start, Error(ExitCode::kBadData, "checksum"), alone));
}

}  // namespace hyperion::checkpointing
