#include "checkpoint/saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <random>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/rank_list.h"
#include "checkpoint/cast.h"
#include "checkpoint/format/metadata_tiling.h"
#include "checkpoint/names.h"
#include "checkpoint/save_index.h"

namespace hyperion::checkpoint {

// Supplies the bytes of this rank's items, from the pool or from the live state.
class Saver::Items : public ItemReader {
 public:
  Items(const CachedPlan& planned, MemoryMover& mover) : planned_(planned), mover_(mover) {
    for (const SaveItem& item : planned.plan.local_items) {
      offsets_.emplace(item.entry, pool_bytes_);
      pool_bytes_ += (tensor(item).local_bytes() + 63) / 64 * 64;
    }
  }

  uint64_t pool_bytes() const { return pool_bytes_; }
  // Copies all items to the pool first; without a pool the live state is read until the save ends.
  void use_pool(std::shared_ptr<std::byte> pool) { pool_ = std::move(pool); }
  bool staged() const { return pool_ != nullptr; }
  std::function<void()> on_staged;

  void stage() override {
    if (!staged()) return;
    failpoint("ckpt.stage");
    for (const auto& [entry, offset] : offsets_) {
      const TensorState& from = planned_.tensors[planned_.layout.entries[entry].tensor];
      mover_.to_host(pool_.get() + offset, from, 0, from.local_bytes());
    }
    mover_.finish();
    if (on_staged) on_staged();
  }

  void read(const SaveItem& item, const Take& take) override {
    const TensorState& from = tensor(item);
    const uint64_t bytes = from.local_bytes();
    if (pool_) {
      take_converted(item, pool_.get() + offsets_.at(item.entry), bytes, take);
    } else if (!from.on_device) {
      take_converted(item, static_cast<const std::byte*>(from.data), bytes, take);
    } else {
      constexpr uint64_t kPiece = uint64_t{64} << 20;
      if (!bounce_) bounce_ = mover_.allocate(kPiece);
      for (uint64_t at = 0; at < bytes; at += kPiece) {
        const uint64_t length = std::min(kPiece, bytes - at);
        mover_.to_host(bounce_.get(), from, at, length);
        mover_.finish();
        take_converted(item, bounce_.get(), length, take);
      }
    }
  }

 private:
  const TensorState& tensor(const SaveItem& item) const {
    return planned_.tensors[planned_.layout.entries[item.entry].tensor];
  }

  void take_converted(const SaveItem& item, const std::byte* data, uint64_t bytes, const Take& take) {
    const Dtype from = tensor(item).dtype, to = planned_.layout.entries[item.entry].dtype;
    if (from == to) return take(data, bytes);
    constexpr uint64_t kCount = uint64_t{1} << 20;
    converted_.resize(kCount * size_of(to));
    for (uint64_t at = 0, count = bytes / size_of(from); at < count; at += kCount) {
      const uint64_t length = std::min(kCount, count - at);
      cast(from, data + at * size_of(from), to, converted_.data(), length);
      take(converted_.data(), length * size_of(to));
    }
  }

  const CachedPlan& planned_;
  MemoryMover& mover_;
  std::map<uint32_t, uint64_t> offsets_;  // entry -> offset in the pool
  uint64_t pool_bytes_ = 0;
  std::shared_ptr<std::byte> pool_, bounce_;
  std::vector<std::byte> converted_;
};

struct Saver::InFlightSave {
  enum class State { kRunning, kDone, kFailed };
  int64_t step = 0;
  std::shared_ptr<Items> items;
  std::promise<bool> end_of_staging;  // set once the live state is no longer read: whether all was copied
  std::future<bool> copied = end_of_staging.get_future();
  std::atomic<State> state = State::kRunning;
  std::future<void> done;
};

Saver::Saver(SaverOptions options, std::vector<StateComponent*> components, Coordinator& group,
             MemoryMover& mover)
    : options_(std::move(options)),
      components_(std::move(components)),
      group_(group),
      mover_(mover),
      folder_(options_.folder),
      pool_(mover) {
  if (!options_.held_part) throw_bug("a saver that does not know what each rank holds");
}

Saver::~Saver() {
  try {
    finish();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

const std::vector<TensorState>& Saver::tensors() {
  if (tensors_.empty())
    for (StateComponent* component : components_)
      for (TensorState& tensor : component->tensors()) tensors_.push_back(std::move(tensor));
  return tensors_;
}

Saver::CachedPlan Saver::make_plan(const SaveContent& content) {
  failpoint("ckpt.plan");
  CachedPlan planned;
  std::vector<std::string> names;
  for (const TensorState& tensor : tensors()) {
    if (content.wanted && !content.wanted(tensor.key)) continue;
    planned.tensors.push_back(tensor);
    names.push_back(tensor.key);
  }
  trace_names("planning a save", names);
  planned.layout = save_layout(planned.tensors);
  if (content.model_dtype) {
    for (SaveLayout::Entry& entry : planned.layout.entries)
      if (component_of(planned.tensors[entry.tensor].key) == kModelComponent &&
          can_cast(entry.dtype, *content.model_dtype))
        entry.dtype = *content.model_dtype;
  }
  std::vector<HeldParts> held(static_cast<size_t>(group_.size()));
  for (size_t rank = 0; rank < held.size(); ++rank)
    for (const SaveLayout::Kind& kind : planned.layout.kinds)
      held[rank].push_back(options_.held_part(kind, static_cast<int>(rank)));
  require_same_plan(planned, held);
  planned.plan = make_save_plan(planned.layout, held, options_.writers, group_.rank());
  return planned;
}

void Saver::require_same_plan(const CachedPlan& planned, const std::vector<HeldParts>& held) {
  const HeldParts actual = held_parts(planned.layout, planned.tensors);
  const HeldParts& expected = held[static_cast<size_t>(group_.rank())];
  const std::vector<uint64_t> layouts = collectively(group_, [&] {
    if (expected != actual)
      throw_bug("save plan: a rank of this place holds {}, this one holds {}", describe(expected),
                describe(actual));
    return planned.layout.fingerprint();
  });
  run_id_ = from_rank_0(group_, [&] {
    for (size_t r = 0; r < layouts.size(); ++r)
      if (layouts[r] != layouts[0])
        throw_bug("checkpoint: rank {} and rank 0 plan different saves ({:016x} and {:016x})", r, layouts[r],
                  layouts[0]);
    std::random_device device;
    return run_id_.empty() ? fmt::format("{:08x}{:08x}", device(), device()) : run_id_;
  });
}

Saver::CachedPlan& Saver::plan_for(const SaveContent& content) {
  if (content.wanted || content.model_dtype) return partial_.emplace(make_plan(content));
  if (!full_) full_ = make_plan(content);
  return *full_;
}

SaveJob Saver::make_job(int64_t step, const SaveContent& content, const CachedPlan& planned) {
  SaveJob job;
  job.step = step;
  job.save_id = fmt::format("{}-{}", run_id_, next_id_++);
  job.kind = content.kind;
  job.facts = options_.facts;
  job.layout = &planned.layout;
  job.plan = &planned.plan;
  job.ranks_per_node = options_.ranks_per_node;
  job.model_dtype = content.model_dtype;
  job.few_files = options_.writers == Writers::kOneReplica;
  std::vector<ObjectState> objects;
  for (StateComponent* component : components_) component->wait_for_update();
  for (StateComponent* component : components_)
    for (ObjectState& object : component->objects())
      if (!content.wanted || content.wanted(object.key)) objects.push_back(std::move(object));
  job.objects = encode_objects(objects, group_.rank());
  return job;
}

// Items that read from the pool if `staged`, else from the live state.
std::shared_ptr<Saver::Items> Saver::make_items(const CachedPlan& planned, bool staged) {
  auto items = std::make_shared<Items>(planned, mover_);
  if (!staged) return items;
  pool_.reserve(items->pool_bytes());
  items->use_pool(pool_.memory());
  return items;
}

SaveReport Saver::write_and_purge(const SaveJob& job, Items& items) {
  const SaveReport report = write_checkpoint(job, items, folder_, group_);
  const bool supersedes = job.kind != CheckpointKind::kPreCheckpoint && job.kind != CheckpointKind::kSeed;
  if (group_.rank() == 0 && job.commit && supersedes)
    folder_.purge({.keep = options_.keep_latest, .newest = report.step});
  if (on_durable && job.commit) on_durable(report);
  return report;
}

uint64_t Saver::index_bytes() {
  const CachedPlan& full = plan_for({});
  return from_rank_0(group_, [&] { return save_index_bytes(full.layout, full.plan); });
}

SaveReport Saver::preflight(int64_t step, const PreflightOptions& options) {
  finish();
  try {
    SaveContent content{.kind = CheckpointKind::kPreCheckpoint};
    if (options.probe && !tensors().empty()) {
      const auto size = [](const TensorState& tensor) { return element_count(tensor.shape).value(); };
      const std::string smallest = std::ranges::min(tensors(), {}, size).key;
      content.wanted = [smallest](const std::string& key) { return key == smallest; };
    }
    const CachedPlan& planned = plan_for(content);
    SaveJob job = make_job(step, content, planned);
    job.commit = options.keep;
    job.read_back = true;
    const auto items = make_items(planned, pooled_ && !options.probe);
    mover_.prepare();
    return write_and_purge(job, *items);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kSaveFailed) throw;
    throw_pre_checkpoint(
        "[pre-checkpoint] the checkpoint before step 1 in {} failed, nothing was trained: {}",
        options_.folder.string(), error.what());
  }
}

// Either all ranks have a pool or none has: a rank without one would write while training waits, and the
// others would block in a training collective until it times out.
void Saver::prepare_pool() {
  if (options_.async == AsyncMode::kDisabled || pooled_) return;
  finish();
  const uint64_t bytes = Items(plan_for({}), mover_).pool_bytes();
  bool allocated = true;
  try {
    pool_.reserve(bytes);
  } catch (const std::bad_alloc&) {
    allocated = false;
  }
  const std::vector<int> without = combine_on_rank_0(group_, allocated, [](const std::vector<bool>& by_rank) {
    std::vector<int> found;
    for (size_t rank = 0; rank < by_rank.size(); ++rank)
      if (!by_rank[rank]) found.push_back(static_cast<int>(rank));
    return found;
  });
  pooled_ = without.empty();
  if (pooled_) return pool_.touch_in_background();
  if (group_.rank() == 0)
    log_warning(
        "checkpoint.async_mode = \"{}\": {} {} {} no {}host memory for a copy of the state ({:.1f} MiB on "
        "rank 0), so checkpoints are written while training waits: give the job more host memory, or set "
        "checkpoint.async_mode = \"disabled\"",
        text_of(options_.async), without.size() == 1 ? "rank" : "ranks", rank_list(without),
        without.size() == 1 ? "has" : "have", mover_.allocates_pinned() ? "pinned " : "",
        static_cast<double>(bytes) / (1 << 20));
  options_.async = AsyncMode::kDisabled;
  pool_.release();
}

bool Saver::save(int64_t step, const SaveContent& content, SaveTiming timing) {
  finish();
  const auto begin = std::chrono::steady_clock::now();
  const bool synchronous = timing == SaveTiming::kSynchronous;
  if (!synchronous) prepare_pool();
  const bool background = options_.async != AsyncMode::kDisabled && !synchronous;
  CachedPlan& plan = plan_for(content);
  SaveJob job = make_job(step, content, plan);
  std::shared_ptr<Items> items = make_items(plan, background);
  mover_.prepare();
  if (background)
    start_in_background(std::move(job), std::move(items));
  else
    write_and_purge(job, *items);
  stall_seconds_ = seconds_since(begin);
  if (background && options_.async == AsyncMode::kAsync) join_staging();
  return !background;
}

void Saver::start_in_background(SaveJob job, std::shared_ptr<Items> items) {
  auto starting = std::make_unique<InFlightSave>();
  starting->step = job.step;
  starting->items = std::move(items);
  starting->items->on_staged = [save = starting.get()] { save->end_of_staging.set_value(true); };
  starting->done = std::async(std::launch::async, [this, job = std::move(job), save = starting.get()] {
    try {
      write_and_purge(job, *save->items);
      save->state = InFlightSave::State::kDone;
    } catch (...) {
      try {
        save->end_of_staging.set_value(false);
      } catch (const std::future_error&) {  // already set
      }
      save->state = InFlightSave::State::kFailed;
      throw;
    }
  });
  in_flight_ = std::move(starting);  // set last: if no thread could be started, nothing may wait for one
}

void Saver::join_staging() {
  if (!in_flight_ || !in_flight_->copied.valid()) return;
  const auto begin = std::chrono::steady_clock::now();
  const bool copied = in_flight_->copied.get();
  stall_seconds_ += seconds_since(begin);
  if (copied && on_staged) on_staged(in_flight_->step, stall_seconds_);
}

bool Saver::save_ended() const {
  return in_flight_ && in_flight_->state != InFlightSave::State::kRunning;
}
bool Saver::save_failed() const {
  return in_flight_ && in_flight_->state == InFlightSave::State::kFailed;
}

void Saver::finish() {
  if (!in_flight_) return;
  join_staging();
  const std::unique_ptr<InFlightSave> save = std::move(in_flight_);
  save->done.get();
}

}  // namespace hyperion::checkpoint
