// What checkpoints cost, compared with the plainest way to move the same bytes. benchmarks/ckpt.sh starts
// this program and prints the table.
//   benchmark_checkpoint PART FOLDER [VOCAB [LAYERS]]
// PART save: 2 ranks, a round measures saves, stalls and a load. PART writers: 4 ranks as a mesh of 2 x 2, a
// round saves with both kinds of writers. PART memory: 2 ranks, one round of 50 saves. PART ema: 2 ranks, a
// round saves with and without averages.
// After "ready", each line on stdin starts a round, whose figures rank 0 prints as one line of JSON; times
// are in seconds, of the slowest rank. It ends when stdin does.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "benchmarks/checkpoint_ranks.h"
#include "benchmarks/checkpoint_state.h"
#include "benchmarks/raw_files.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "checkpoint/storage/block_buffer.h"
#include "checkpoint/storage/shard_reader.h"

using namespace hyperion;
using namespace hyperion::checkpoint;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Placement rows_of_fsdp(int shards, int shard, int replicas = 1, int replica = 0) {
  return {.cuts = {{.parts = shards, .index = shard}}, .replicas = replicas, .replica = replica};
}

Placement on_every_rank(const Coordinator& ranks) {
  return {.cuts = {}, .replicas = ranks.size(), .replica = ranks.rank()};
}

double slowest(Coordinator& ranks, double seconds) {
  double most = seconds;
  for (const std::string& text : ranks.gather(std::to_string(seconds)))
    most = std::max(most, std::stod(text));
  return std::stod(ranks.broadcast(std::to_string(most)));
}

// Of this process so far, its threads and the system's work for it included.
double processor_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Seconds of the slowest rank; all start together.
double timed(Coordinator& ranks, const auto& work) {
  wait_for_all(ranks);
  const Clock::time_point begin = Clock::now();
  work();
  return slowest(ranks, seconds_since(begin));
}

// Waits until the disk has nothing left to do.
void flush_disk(Coordinator& ranks) {
  if (ranks.rank() == 0) ::sync();
  wait_for_all(ranks);
}

// Work like that of a training step on one core: products of small matrices.
class Compute {
 public:
  void step() {
    for (int repetition = 0; repetition < 10; ++repetition)
      for (size_t i = 0; i < kSize; ++i)
        for (size_t k = 0; k < kSize; ++k)
          for (size_t j = 0; j < kSize; ++j) c_[i * kSize + j] += a_[i * kSize + k] * b_[k * kSize + j];
  }
  // Seconds of one step when nothing else runs.
  double measure(int steps) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    return seconds_since(begin) / steps;
  }

 private:
  static constexpr size_t kSize = 128;
  std::vector<float> a_ = std::vector<float>(kSize * kSize, 1e-3F), b_ = a_, c_ = a_;
};

constexpr int kWindow = 25;  // steps of the window after a save, at least

// Knows the memory that it allocated last.
class WatchedMover : public MemoryMover {
 public:
  std::shared_ptr<std::byte> allocate(uint64_t bytes) override {
    auto memory = MemoryMover::allocate(bytes);
    last_ = memory.get();
    pages_.resize((bytes + 4095) / 4096);
    return memory;
  }
  bool last_is_resident() {
    if (::mincore(last_, pages_.size() * 4096, pages_.data()) != 0)
      throw_bug("mincore: {}", errno_text(errno));
    return std::ranges::all_of(pages_, [](unsigned char page) { return (page & 1) != 0; });
  }

 private:
  void* last_ = nullptr;
  std::vector<unsigned char> pages_;
};

// A saver with a folder of its own, which holds at most the last checkpoint.
struct Target {
  Target(const fs::path& folder_, AsyncMode mode, StateComponent& state, Coordinator& ranks,
         MemoryMover& mover, Writers writers = Writers::kAll)
      : folder(folder_), saver(options(folder_, mode, writers), {&state}, ranks, mover) {
    saver.on_durable = [this](const SaveReport& done) { report = done; };
  }
  static SaverOptions options(const fs::path& folder, AsyncMode mode, Writers writers) {
    return {.folder = folder, .writers = writers, .async = mode, .held_part = held_part};
  }
  static HeldPart held_part(const SaveLayout::Kind& kind, int rank) {
    return {rank % kind.parts(), rank / kind.parts()};
  }
  // Between the measurements: nothing of the last save is left.
  void clear(Coordinator& ranks) {
    if (ranks.rank() == 0) {
      fs::remove_all(folder);
      fs::create_directories(folder);
    }
    wait_for_all(ranks);
  }

  fs::path folder;
  Saver saver;
  SaveReport report;
  int64_t step = 0;
};

struct Stall {
  double stall = 0;    // in save() and join_staging()
  double window = 0;   // by how much the window after it took longer than without a save
  double durable = 0;  // from the call until the checkpoint is durable
};

// `overlapped`: the join comes after half of the window.
Stall save_async(Target& target, Coordinator& ranks, Compute* compute, double step_seconds) {
  wait_for_all(ranks);
  const Clock::time_point begin = Clock::now();
  target.saver.save(++target.step);
  Stall result{.stall = seconds_since(begin)};
  const auto join = [&] {
    const Clock::time_point join_begin = Clock::now();
    target.saver.join_staging();
    const double seconds = seconds_since(join_begin);
    result.stall += seconds;
    return seconds;
  };
  if (compute != nullptr) {
    const Clock::time_point window_begin = Clock::now();
    double joined = 0;
    int steps = 0;
    while (steps < kWindow || !target.saver.save_ended()) {
      compute->step();
      if (++steps == kWindow / 2) joined = join();
    }
    result.window = seconds_since(window_begin) - joined - steps * step_seconds;
  } else {
    join();
  }
  target.saver.finish();
  result.durable = seconds_since(begin);
  return {slowest(ranks, result.stall), slowest(ranks, result.window), slowest(ranks, result.durable)};
}

class SavePart {
 public:
  SavePart(fs::path folder, const std::vector<NamedShape>& shapes, SocketRanks& ranks)
      : folder_(std::move(folder)),
        ranks_(ranks),
        state_(shapes, rows_of_fsdp(2, ranks.rank()), on_every_rank(ranks)),
        loaded_(shapes, rows_of_fsdp(2, ranks.rank()), on_every_rank(ranks)),
        flat_(state_.bytes() + 2 * kTransfer),
        sync_(folder_ / "sync", AsyncMode::kDisabled, state_, ranks, mover_),
        async_(folder_ / "async", AsyncMode::kAsync, state_, ranks, mover_),
        overlapped_(folder_ / "overlapped", AsyncMode::kOverlapped, state_, ranks, mover_) {
    copy_state();
    warm_up();
  }

  Json round(int number) {
    Json figures = first_;
    figures["bytes_per_rank"] = state_.bytes();
    // What is measured first changes from round to round.
    if (number % 2 == 0) measure_raw_write(figures);
    measure_sync(figures);
    if (number % 2 != 0) measure_raw_write(figures);
    if (number % 2 == 0) measure_raw_read(figures);
    measure_load(figures);
    if (number % 2 != 0) measure_raw_read(figures);
    measure_stalls(figures);
    return figures;
  }

 private:
  // The first saves, which plan and allocate, apart: without and with a pool that was prepared before steps.
  void warm_up() {
    {
      Target unprepared(folder_ / "unprepared", AsyncMode::kAsync, state_, ranks_, mover_);
      unprepared.clear(ranks_);
      first_["unprepared_async_stall"] = save_async(unprepared, ranks_, nullptr, 0).stall;
      unprepared.clear(ranks_);
    }
    async_.saver.prepare_pool();
    first_["pool_prepared_after"] = compute_until_pool_is_there();
    for (const char* name : {"first_async_stall", "second_async_stall"}) {
      async_.clear(ranks_);
      first_[name] = save_async(async_, ranks_, nullptr, 0).stall;
    }
    save_async(overlapped_, ranks_, nullptr, 0);
    for (const char* name : {"first_save_exchanges", "second_save_exchanges"}) {
      sync_.clear(ranks_);
      const int64_t before = ranks_.exchanges();
      sync_.saver.save(++sync_.step);
      first_[name] = ranks_.exchanges() - before;
    }
  }

  // Steps that leave a fifth of the time to others, as those do that wait for a peer, for at most a minute.
  double compute_until_pool_is_there() {
    const Clock::time_point begin = Clock::now();
    while (!mover_.last_is_resident() && seconds_since(begin) < 60) {
      const Clock::time_point step = Clock::now();
      compute_.step();
      std::this_thread::sleep_for((Clock::now() - step) / 4);
    }
    return slowest(ranks_, seconds_since(begin));
  }

  void copy_state() {
    uint64_t at = 0;
    for (const TensorState& tensor : state_.tensors()) {
      std::memcpy(flat_.data() + at, tensor.data, tensor.local_bytes());
      at += tensor.local_bytes();
    }
  }

  void measure_raw_write(Json& figures) {
    const fs::path path = folder_ / fmt::format("raw{}", ranks_.rank());
    const uint64_t bytes = sync_.report.local_bytes / kDirectAlignment * kDirectAlignment;
    for (const auto& [name, way] :
         {std::pair("raw_write_buffered", Way::kBuffered), {"raw_write_direct", Way::kDirect}}) {
      flush_disk(ranks_);
      figures[name] = timed(ranks_, [&] { raw_write(path, flat_.data(), bytes, way); });
      fs::remove(path);
    }
  }

  void measure_sync(Json& figures) {
    sync_.clear(ranks_);
    flush_disk(ranks_);
    const double processor = processor_seconds();
    figures["sync_save"] = timed(ranks_, [&] { sync_.saver.save(++sync_.step); });
    figures["sync_save_processor"] = slowest(ranks_, processor_seconds() - processor);
    figures["sync_write"] = slowest(ranks_, sync_.report.write_seconds);
    figures["sync_commit"] = slowest(ranks_, sync_.report.commit_seconds);
  }

  void measure_stalls(Json& figures) {
    const auto memcpy_seconds = [&] { return timed(ranks_, [&] { copy_state(); }); };
    const double step = compute_.measure(kWindow);
    figures["compute_step"] = slowest(ranks_, step);
    for (const auto& [name, target] : {std::pair("async", &async_), {"overlapped", &overlapped_}}) {
      for (Compute* compute : {static_cast<Compute*>(nullptr), &compute_}) {
        const std::string key = fmt::format("{}{}", name, compute != nullptr ? "_computing" : "");
        target->clear(ranks_);
        flush_disk(ranks_);
        figures[key + "_memcpy"] = memcpy_seconds();
        const Stall stall = save_async(*target, ranks_, compute, step);
        figures[key + "_stall"] = stall.stall;
        if (compute != nullptr) figures[key + "_window"] = stall.window;
        figures[key + "_durable"] = stall.durable;
      }
    }
  }

  // After measure_sync(): its files are there.
  void measure_raw_read(Json& figures) {
    const fs::path path = sync_.report.path / shard_file_name(ranks_.rank());
    for (const auto& [name, way] :
         {std::pair("raw_read_buffered", Way::kBuffered), {"raw_read_direct", Way::kDirect}}) {
      evict(path);
      figures[name] = timed(ranks_, [&] { raw_read(path, flat_.data(), way); });
    }
  }

  void measure_load(Json& figures) {
    const fs::path path = sync_.report.path;
    if (ranks_.rank() == 0)
      for (const auto& entry : fs::directory_iterator(path)) evict(entry.path());
    const double processor = processor_seconds();
    figures["load"] = timed(ranks_, [&] {
      const OpenCheckpoint checkpoint = open_checkpoint(path);
      StoredNames names;
      for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
      const std::vector<TensorState> tensors = loaded_.tensors();
      load_tensors(checkpoint, plan_load(checkpoint, tensors, names, {}), mover_, {});
      load_objects(checkpoint, [](const std::string&) { return true; });
    });
    figures["load_processor"] = slowest(ranks_, processor_seconds() - processor);
    require_equal();
  }

  void require_equal() {
    const std::vector<TensorState> saved = state_.tensors(), loaded = loaded_.tensors();
    for (size_t i = 0; i < saved.size(); ++i)
      if (std::memcmp(saved[i].data, loaded[i].data, saved[i].local_bytes()) != 0)
        throw_bug("{} was loaded with other bytes than it was saved with", saved[i].key);
  }

  fs::path folder_;
  SocketRanks& ranks_;
  WatchedMover mover_;
  LlamaState state_, loaded_;
  BlockBuffer flat_;  // as many bytes in one piece
  Compute compute_;
  Target sync_, async_, overlapped_;
  Json first_;
};

// Two parts, each on two ranks; a replica is a group that holds all parts.
class WritersPart {
 public:
  WritersPart(const fs::path& folder, const std::vector<NamedShape>& shapes, SocketRanks& ranks)
      : ranks_(ranks),
        state_(shapes, rows_of_fsdp(2, ranks.rank() % 2, 2, ranks.rank() / 2), on_every_rank(ranks)),
        all_(folder / "all", AsyncMode::kDisabled, state_, ranks, mover_, Writers::kAll),
        one_(folder / "one_replica", AsyncMode::kDisabled, state_, ranks, mover_, Writers::kOneReplica) {
    for (Target* target : {&all_, &one_}) {
      target->clear(ranks);
      target->saver.save(++target->step);
    }
  }

  Json round(int number) {
    Json figures;
    std::vector<std::pair<const char*, Target*>> order{{"all", &all_}, {"one_replica", &one_}};
    if (number % 2 != 0) std::swap(order[0], order[1]);
    for (const auto& [name, target] : order) {
      target->clear(ranks_);
      flush_disk(ranks_);
      figures[std::string(name) + "_save"] = timed(ranks_, [&] { target->saver.save(++target->step); });
      Json files = Json::object();
      for (const auto& entry : fs::directory_iterator(target->report.path))
        files[entry.path().filename().string()] = entry.file_size();
      figures[std::string(name) + "_files"] = files;
    }
    return figures;
  }

 private:
  SocketRanks& ranks_;
  MemoryMover mover_;
  LlamaState state_;
  Target all_, one_;
};

// What an average of the parameters adds to the stall of an asynchronous save.
class EmaPart {
 public:
  EmaPart(const fs::path& folder, const std::vector<NamedShape>& shapes, SocketRanks& ranks)
      : ranks_(ranks),
        plain_(shapes, rows_of_fsdp(2, ranks.rank()), on_every_rank(ranks)),
        averaged_(shapes, rows_of_fsdp(2, ranks.rank()), on_every_rank(ranks), /*ema=*/true),
        without_(folder / "without", AsyncMode::kAsync, plain_, ranks, mover_),
        with_(folder / "with", AsyncMode::kAsync, averaged_, ranks, mover_) {
    for (Target* target : {&without_, &with_}) {
      target->clear(ranks);
      save_async(*target, ranks, nullptr, 0);
    }
  }

  Json round(int number) {
    Json figures{{"bytes_per_rank", plain_.bytes()}, {"bytes_per_rank_with_ema", averaged_.bytes()}};
    std::vector<std::pair<const char*, Target*>> order{{"without", &without_}, {"with", &with_}};
    if (number % 2 != 0) std::swap(order[0], order[1]);
    for (const auto& [name, target] : order) {
      target->clear(ranks_);
      flush_disk(ranks_);
      figures[std::string(name) + "_stall"] = save_async(*target, ranks_, nullptr, 0).stall;
    }
    return figures;
  }

 private:
  SocketRanks& ranks_;
  MemoryMover mover_;
  LlamaState plain_, averaged_;
  Target without_, with_;
};

class MemoryPart {
 public:
  MemoryPart(const fs::path& folder, const std::vector<NamedShape>& shapes, SocketRanks& ranks)
      : ranks_(ranks),
        state_(shapes, rows_of_fsdp(2, ranks.rank()), on_every_rank(ranks)),
        target_(folder / "memory", AsyncMode::kOverlapped, state_, ranks, mover_) {}

  Json round(int) {
    Json figures{{"bytes_per_rank", state_.bytes()}};
    for (int save = 1; save <= 50; ++save) {
      target_.clear(ranks_);
      save_async(target_, ranks_, nullptr, 0);
      if (save == 5 || save == 50)
        figures[fmt::format("resident_after_{}", save)] = slowest(ranks_, resident());
    }
    return figures;
  }

 private:
  static double resident() {
    uint64_t total = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> total >> pages;
    return static_cast<double>(pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
  }

  SocketRanks& ranks_;
  MemoryMover mover_;
  LlamaState state_;
  Target target_;
};

template <typename Part>
void rounds(const fs::path& folder, const std::vector<NamedShape>& shapes, SocketRanks& ranks) {
  init_logging(/*quiet=*/true);
  Part part(folder, shapes, ranks);
  if (ranks.rank() == 0) std::cout << "ready" << std::endl;
  for (int number = 0;; ++number) {
    std::string line;
    const bool more = ranks.rank() != 0 || static_cast<bool>(std::getline(std::cin, line));
    if (ranks.broadcast(more ? "more" : "end") == "end") return;
    const Json figures = part.round(number);
    if (ranks.rank() == 0) std::cout << figures.dump() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 2 ? argv[1] : "";
  const std::vector<NamedShape> shapes =
      llama_shapes(argc > 3 ? std::atoll(argv[3]) : 31168, argc > 4 ? std::atoll(argv[4]) : 4);
  const auto run = [&](int ranks, const auto& body) {
    return run_ranks(ranks, [&](SocketRanks& each) { body(argv[2], shapes, each); }) ? 0 : 1;
  };
  if (part == "save") return run(2, rounds<SavePart>);
  if (part == "writers") return run(4, rounds<WritersPart>);
  if (part == "memory") return run(2, rounds<MemoryPart>);
  if (part == "ema") return run(2, rounds<EmaPart>);
  fmt::print(stderr, "usage: benchmark_checkpoint save|writers|memory|ema FOLDER [VOCAB [LAYERS]]\n");
  return 2;
}
