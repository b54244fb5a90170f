#include "checkpoint/saver.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/collective.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "checkpoint/export_safetensors.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/loader.h"
#include "tests/support/error_of.h"
#include "tests/support/placements.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace hyperion::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::ThreadRanks;

// A table of `rows` x 3 numbers cut by rows, and a step count: a component that the checkpoint does not
// know.
class Dummy : public StateComponent {
 public:
  Dummy(int rows, int shards, int rank, int replicas = 1) {
    table_.key = "dummy.weight";
    table_.path = {"dummy.weight"};
    table_.shape = {rows, 3};
    table_.placement = test::cut_by_rows(shards, rank % shards, replicas, rank / shards);
    numbers_.resize(static_cast<size_t>(table_.box().numel()));
    table_.data = numbers_.empty() ? nullptr : numbers_.data();
    set(0);
  }
  // Element i of the whole table is i + base.
  void set(float base) {
    std::iota(numbers_.begin(), numbers_.end(), base + static_cast<float>(table_.box().offset[0] * 3));
    step_ = static_cast<int64_t>(base);
  }
  bool is(float base) const {
    for (size_t i = 0; i < numbers_.size(); ++i)
      if (numbers_[i] != base + static_cast<float>(table_.box().offset[0] * 3 + static_cast<int64_t>(i)))
        return false;
    return step_ == static_cast<int64_t>(base);
  }
  std::string name() const override { return "train_state"; }
  std::vector<TensorState> tensors() override {
    std::vector<TensorState> tensors = {table_};
    if (more_) {
      tensors.push_back(table_);
      tensors.back().key = "dummy.more";
      tensors.back().path = {"dummy.more"};
    }
    return tensors;
  }
  void grow() { more_ = true; }  // before its tensors are asked for
  // This rank's numbers.
  std::vector<float>& numbers() { return numbers_; }
  std::vector<ObjectState> objects() override {
    return {{"train_state.step", {"train_state", "step"}, step_}};
  }
  void load(const Find& find) override { step_ = *find("train_state.step")->get_if<int64_t>(); }

 private:
  bool more_ = false;
  TensorState table_;
  std::vector<float> numbers_;
  int64_t step_ = 0;
};

// The state of one rank, and its saver.
struct Job {
  Job(Coordinator& ranks, const fs::path& folder, int rows, int shards = 1,
      AsyncMode mode = AsyncMode::kDisabled, Writers writers = Writers::kAll)
      : dummy(rows, shards, ranks.rank(), ranks.size() / shards),
        saver({.folder = folder, .writers = writers, .async = mode, .held_part = test::places_on(shards)},
              {&dummy}, ranks, mover) {}
  Dummy dummy;
  MemoryMover mover;
  Saver saver;
};

// Counts the exchanges of the rank it wraps, and the bytes that this rank gives and receives.
class Counting : public Coordinator {
 public:
  explicit Counting(Coordinator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::vector<std::string> gather(const std::string& text) override {
    ++exchanges;
    bytes += text.size();
    return inner_.gather(text);
  }
  std::string broadcast(const std::string& text) override {
    ++exchanges;
    std::string said = inner_.broadcast(text);
    bytes += said.size();
    return said;
  }
  int exchanges = 0;
  size_t bytes = 0;

 private:
  Coordinator& inner_;
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

void load_into(const fs::path& path, Dummy& dummy) {
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  StoredNames names;
  for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
  const std::vector<TensorState> tensors = dummy.tensors();
  MemoryMover mover;
  load_tensors(checkpoint, plan_load(checkpoint, tensors, names, {}), mover, {});
  const auto objects = load_objects(checkpoint, [](const std::string&) { return true; });
  dummy.load([&](const std::string& key) {
    const auto found = objects.find(key);
    return found == objects.end() ? nullptr : &found->second;
  });
}

// Returns whether the checkpoint holds a table of `rows` rows that was set(base), as rank `rank` of `shards`
// loads it.
bool holds(const fs::path& path, int rows, float base, int shards = 1, int rank = 0) {
  Dummy loaded(rows, shards, rank);
  load_into(path, loaded);
  return loaded.is(base);
}

}  // namespace

TEST_CASE("what any mesh has saved any other mesh loads") {
  const TemporaryFolder folder;
  for (const auto& [shards, replicas] : {std::pair{1, 1}, {3, 1}, {2, 2}, {1, 4}}) {
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      fs::remove_all(folder.path());
      ThreadRanks::run(shards * replicas, [&, s = shards](Coordinator& ranks) {
        Job job(ranks, folder.path(), 13, s, AsyncMode::kDisabled, writers);
        job.dummy.set(7);
        job.saver.save(1);
      });
      for (const int target : {1, 2, 3, 4, 8})
        for (int rank = 0; rank < target; ++rank) CHECK(holds(folder.path() / "step-1", 13, 7, target, rank));
    }
  }
}

TEST_CASE("the second save plans nothing and exchanges three small texts") {
  const TemporaryFolder folder;
  ThreadRanks::run(4, [&](Coordinator& ranks) {
    Counting counted(ranks);
    Job job(counted, folder.path(), 1000, 2);
    Saver& saver = job.saver;
    saver.save(1);
    const int first = counted.exchanges;
    counted.bytes = 0;
    saver.save(2);
    if (ranks.rank() != 0) return;  // Catch is for one thread
    CHECK(counted.exchanges - first == 3);
    CHECK(counted.bytes < 1000);
  });
}

TEST_CASE("ranks exchange no places to plan a save") {
  constexpr int kShards = 4, kReplicas = 16;
  const TemporaryFolder folder;
  size_t planning = 0;
  ThreadRanks::run(kShards * kReplicas, [&](Coordinator& ranks) {
    Counting counted(ranks);
    Job job(counted, folder.path(), 1000, kShards);
    job.saver.save(1);
    const size_t with_plan = counted.bytes;
    counted.bytes = 0;
    job.saver.save(2);
    if (ranks.rank() == 1) planning = with_plan - counted.bytes;
  });
  CHECK(planning < 60);
}

TEST_CASE("a rank that is not where the others take it to be is a bug that every rank names") {
  const TemporaryFolder folder;
  std::atomic<int> named = 0;
  ThreadRanks::run(2, [&](Coordinator& ranks) {
    const auto wrong = [](const SaveLayout::Kind&, int rank) { return HeldPart{1 - rank, 0}; };
    Dummy dummy(100, 2, ranks.rank());
    MemoryMover mover;
    Saver saver({.folder = folder.path(), .held_part = wrong}, {&dummy}, ranks, mover);
    try {
      saver.save(1);
    } catch (const Error& error) {
      named += error.code() == ExitCode::kBug &&
               std::string(error.what()).find("rank 0: save plan: a rank of this place holds 1:0") == 0;
    }
  });
  CHECK(named == 2);
}

TEST_CASE("every rank reports the files and bytes of the whole save") {
  const TemporaryFolder folder;
  std::vector<SaveReport> reports(4);
  ThreadRanks::run(4, [&](Coordinator& ranks) {
    Job job(ranks, folder.path(), 1000, 4);
    job.saver.on_durable = [&](const SaveReport& report) {
      reports[static_cast<size_t>(ranks.rank())] = report;
    };
    job.saver.save(1);
  });
  uint64_t bytes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const SaveReport& report = reports[static_cast<size_t>(rank)];
    CHECK(report.files == 4);
    CHECK(report.total_bytes == reports[0].total_bytes);
    CHECK(report.local_bytes == fs::file_size(folder.path() / "step-1" / shard_file_name(rank)));
    bytes += report.local_bytes;
  }
  CHECK(bytes == reports[0].total_bytes);
}

TEST_CASE("saves show the values of their moment whatever happens afterwards") {
  const TemporaryFolder folder;
  for (const AsyncMode mode : {AsyncMode::kDisabled, AsyncMode::kAsync, AsyncMode::kOverlapped}) {
    fs::remove_all(folder.path());
    SoloCoordinator alone;
    Job job(alone, folder.path(), 100, 1, mode);
    Dummy& dummy = job.dummy;
    for (int step = 1; step <= 3; ++step) {
      dummy.set(static_cast<float>(step));
      job.saver.save(step);
      job.saver.join_staging();
      dummy.set(-1);
    }
    job.saver.finish();
    for (int step = 1; step <= 3; ++step) {
      load_into(folder.path() / fmt::format("step-{}", step), dummy);
      CHECK(dummy.is(static_cast<float>(step)));
    }
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step-1", "step-2", "step-3"});
  }
}

TEST_CASE("one save is under way at a time and one pool serves all") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 100, 1, AsyncMode::kAsync);
  arm_faults("point=ckpt.before_data;action=sleep:0.05;nth=0", 0);
  for (int step = 1; step <= 4; ++step) job.saver.save(step);
  job.saver.finish();
  arm_faults("", 0);
  CHECK(names_in(folder.path()).size() == 4);
  CHECK(job.saver.pool_bytes() == 1216);  // 1,200 bytes of numbers, in lines of 64
}

TEST_CASE("the pool is there before the first save, and only for saves in the background") {
  const TemporaryFolder folder;
  for (const AsyncMode mode : {AsyncMode::kDisabled, AsyncMode::kAsync, AsyncMode::kOverlapped}) {
    fs::remove_all(folder.path());
    SoloCoordinator alone;
    Job job(alone, folder.path(), 100, 1, mode);
    job.saver.prepare_pool();
    CHECK(job.saver.pool_bytes() == (mode == AsyncMode::kDisabled ? 0 : 1216));
    job.dummy.set(5);
    job.saver.save(1);
    job.saver.finish();
    CHECK(holds(folder.path() / "step-1", 100, 5));
  }
}

TEST_CASE("without memory for the pool a save is written while training waits") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 100, 1, AsyncMode::kOverlapped);
  job.dummy.set(3);
  arm_faults("point=ckpt.pool;action=errno:ENOMEM;nth=0", 0);
  job.saver.save(1);
  job.saver.join_staging();
  job.dummy.set(4);
  job.saver.finish();
  arm_faults("", 0);
  CHECK(job.saver.pool_bytes() == 0);
  CHECK(holds(folder.path() / "step-1", 100, 3));
}

TEST_CASE("where one rank has no memory for the pool no rank keeps one or asks for it later") {
  const TemporaryFolder folder;
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    Job job(ranks, folder.path(), 30, 3, AsyncMode::kAsync);
    if (ranks.rank() == 0)
      arm_faults("point=ckpt.pool;action=errno:ENOMEM", 0);  // of the rank that comes first
    test::wait_for_all(ranks);
    job.saver.prepare_pool();
    CHECK(job.saver.pool_bytes() == 0);
    job.dummy.set(7);
    job.saver.preflight(0, {.keep = true});
    CHECK(job.saver.save(1));  // durable when it returns
    CHECK(job.saver.pool_bytes() == 0);
    test::wait_for_all(ranks);
    if (ranks.rank() == 0) arm_faults("", 0);
  });
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-1"});
}

TEST_CASE("a failure of one rank fails the save on every rank with its name and leaves nothing") {
  const TemporaryFolder folder;
  std::atomic<int> failed = 0;
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    Job job(ranks, folder.path(), 30, 3);
    Saver& saver = job.saver;
    saver.save(1);
    if (ranks.rank() == 0) arm_faults("point=file.write;action=errno:ENOSPC;on=__1_0", 0);
    test::wait_for_all(ranks);
    try {
      saver.save(2);
    } catch (const Error& error) {
      const std::string text = error.what();
      failed += error.code() == ExitCode::kSaveFailed && text.find("rank 1") != std::string::npos &&
                text.find("No space left on device") != std::string::npos;
    }
    test::wait_for_all(ranks);
    if (ranks.rank() == 0) arm_faults("", 0);
    test::wait_for_all(ranks);
    saver.save(3);
  });
  CHECK(failed == 3);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-1", "step-3"});
}

TEST_CASE("a rank that cannot copy its state ends a background save on every rank with the same message") {
  const TemporaryFolder folder;
  std::vector<std::string> said(3);
  ThreadRanks::run(3, [&](Coordinator& ranks) {
    Job job(ranks, folder.path(), 30, 3, AsyncMode::kAsync);
    Saver& saver = job.saver;
    saver.save(1);
    saver.finish();
    if (ranks.rank() == 0) arm_faults("point=ckpt.stage;action=throw", 0);  // of the rank that comes first
    test::wait_for_all(ranks);
    said[static_cast<size_t>(ranks.rank())] = error_of(ExitCode::kBug, [&] {
      saver.save(2);
      saver.finish();
    });
    test::wait_for_all(ranks);
    if (ranks.rank() == 0) arm_faults("", 0);
    test::wait_for_all(ranks);
    saver.save(3);
    saver.finish();
  });
  CHECK_THAT(said[0],
             Catch::StartsWith("rank ") && Catch::Contains("the fault armed at ckpt.stage was thrown"));
  CHECK(said == std::vector<std::string>(3, said[0]));
  CHECK_FALSE(fs::exists(folder.path() / "step-2"));
  CHECK(fs::exists(folder.path() / "step-3"));
}

TEST_CASE("a state with NaN or infinite numbers is saved on no rank and nothing finite goes") {
  const TemporaryFolder folder;
  for (const AsyncMode mode : {AsyncMode::kDisabled, AsyncMode::kAsync, AsyncMode::kOverlapped}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      fs::remove_all(folder.path());
      std::vector<std::string> said(3);
      ThreadRanks::run(3, [&](Coordinator& ranks) {
        Dummy dummy(30, 3, ranks.rank());
        MemoryMover mover;
        Saver saver(
            {.folder = folder.path(), .async = mode, .keep_latest = 2, .held_part = test::places_on(3)},
            {&dummy}, ranks, mover);
        saver.preflight(0, {.keep = true});
        saver.save(1);
        saver.save(2);
        saver.finish();
        if (ranks.rank() == 1) dummy.numbers()[4] = bad;
        for (const int64_t step : {3, 2}) {  // a new one, and one in the place of another
          said[static_cast<size_t>(ranks.rank())] = error_of(ExitCode::kNonFinite, [&] {
            saver.save(step);
            saver.finish();
          });
        }
        if (ranks.rank() == 1) dummy.numbers()[4] = 1;
      });
      for (const std::string& text : said) {
        CHECK(text == said.front());
        CHECK_THAT(text, Catch::Contains("the state after step 2 holds NaN or infinite numbers") &&
                             Catch::Contains("rank 1: dummy.weight (1 number)") &&
                             Catch::Contains("the newest checkpoint, which stays, is step-2 in " +
                                             folder.path().string()));
      }
      CHECK(names_in(folder.path()) == std::vector<std::string>{"step-1", "step-2"});
      CHECK(holds(folder.path() / "step-2", 30, 0));
    }
  }
}

TEST_CASE("a first save with NaN leaves nothing behind and says that there is nothing to resume from") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 10);
  job.dummy.numbers()[0] = std::numeric_limits<float>::quiet_NaN();
  job.dummy.grow();
  CHECK_THAT(error_of(ExitCode::kNonFinite, [&] { job.saver.preflight(0, {.keep = true}); }),
             Catch::Contains("dummy.weight (1 number), dummy.more (1 number)") &&
                 Catch::Contains("no checkpoint that training could resume from is in"));
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("numbers that the type of an export makes infinite are not saved") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 10);
  Saver& saver = job.saver;
  job.dummy.numbers()[3] = 1e6F;
  saver.save(1);
  const TensorState weight = job.dummy.tensors().front();
  const auto as_safetensors = [&](Dtype dtype) {
    export_safetensors(2, "export-2", {{&weight, "w", dtype}}, {}, {}, saver.folder(), alone, job.mover);
  };
  const SaveContent narrow{.kind = CheckpointKind::kModel, .model_dtype = Dtype::kFloat16};
  for (const std::string& text :
       {error_of(ExitCode::kNonFinite, [&] { as_safetensors(Dtype::kFloat16); }),
        error_of(ExitCode::kNonFinite, [&] { saver.save(2, narrow, SaveTiming::kSynchronous); })})
    CHECK_THAT(text, Catch::Contains("as float16 holds NaN or infinite numbers") &&
                         Catch::Contains("(1 number)") && Catch::Contains("step-1") &&
                         Catch::Contains("export_dtype = \"float32\""));
  CHECK_FALSE(fs::exists(folder.path() / "step-2"));
  as_safetensors(Dtype::kBFloat16);
  CHECK(fs::exists(folder.path() / "step-2" / "model.safetensors"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("a load names every tensor that is not finite") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 10);
  job.dummy.grow();
  job.saver.save(1);
  // What another program wrote: the numbers change, and nothing knows their checksums.
  fs::remove(folder.path() / "step-1" / "hyperion.json");
  OpenCheckpoint checkpoint = open_checkpoint(folder.path() / "step-1");
  for (auto& [key, record] : checkpoint.index.tensors) {
    const Span where = record.chunks.front().where;
    std::fstream file(folder.path() / "step-1" / where.file, std::ios::in | std::ios::out | std::ios::binary);
    const std::string head = tensor_archive_head(Dtype::kFloat32, {10, 3});
    std::string data(120, '\0');
    file.seekg(static_cast<std::streamoff>(where.offset + head.size()));
    file.read(data.data(), 120);
    const float bad = std::numeric_limits<float>::infinity();
    std::memcpy(data.data() + 8, &bad, sizeof bad);
    const std::string tail = tensor_archive_tail(Dtype::kFloat32, {10, 3}, crc32(0, data.data(), 120));
    file.seekp(static_cast<std::streamoff>(where.offset + head.size()));
    file << data << tail;
  }
  const std::vector<TensorState> tensors = job.dummy.tensors();
  const StoredNames names{.keys = {{"dummy.weight", "dummy.weight"}, {"dummy.more", "dummy.more"}}};
  const auto load = [&](bool verify) {
    LoadOptions options;
    options.verify_finite = verify;
    load_tensors(checkpoint, plan_load(checkpoint, tensors, names, options), job.mover, options);
  };
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { load(true); }),
             Catch::Contains("dummy.weight (1 number)") && Catch::Contains("dummy.more (1 number)"));
  CHECK_NOTHROW(load(false));
}

TEST_CASE("names and shapes and types that do not fit are listed at once before data is read") {
  const TemporaryFolder folder;
  SoloCoordinator alone;
  Job job(alone, folder.path(), 10);
  job.saver.save(1);
  const OpenCheckpoint checkpoint = open_checkpoint(folder.path() / "step-1");
  std::vector<TensorState> tensors = job.dummy.tensors();
  tensors[0].shape = {11, 3};
  tensors.push_back(tensors[0]);
  tensors[1].key = "dummy.weigth";
  const StoredNames names{.keys = {{"dummy.weight", "dummy.weight"}}};
  CHECK_THROWS_WITH(plan_load(checkpoint, tensors, names, {}), Catch::Contains("dummy.weigth") &&
                                                                   Catch::Contains("[11, 3]") &&
                                                                   Catch::Contains("[10, 3]"));
  CHECK_THROWS_AS(plan_load(checkpoint, tensors, names, {}), IncompatibleCheckpoint);
  tensors = job.dummy.tensors();
  tensors[0].dtype = Dtype::kBFloat16;
  CHECK_THROWS_WITH(plan_load(checkpoint, tensors, names, {.remedy = "REMEDY"}),
                    Catch::Contains("bfloat16") && Catch::Contains("REMEDY"));
  CHECK(plan_load(checkpoint, tensors, names, {.allow_dtype_cast = true}).size() == 1);
}

}  // namespace hyperion::checkpoint
