#include "trainer/metrics/profiler.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"

namespace hyperion::metrics {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

// The number of allocations and frees a snapshot keeps, v0.2.2's.
constexpr size_t kSnapshotEntries = 100000;

// <base>/<folder>/iteration_<..>/, created; empty with a warning when that fails.
std::filesystem::path iteration_folder(const std::filesystem::path& base, const std::string& iteration) {
  const std::filesystem::path folder = base / ("iteration_" + iteration);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return folder;
  log_warning("{}: cannot create the folder ({}): nothing is saved there", folder.string(), error.message());
  return {};
}

// Under a new name first: what may have the trace's name, a pipe or a link, is replaced and never written
// into.
void save_result(kineto::ProfilerResult& result, const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp.{}", ::getpid());
  if (!create_new_file(temporary)) {
    log_warning("{}: the trace cannot be written: {}", printable(temporary), errno_text(errno));
    return;
  }
  result.save(temporary.string());
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    log_warning("{}: the trace cannot get its name: {}", printable(path), errno_text(errno));
}

}  // namespace

// libtorch's profiler from prepareProfiler() on. It is one per process.
struct Profiler::Recording {
  explicit Recording(bool cuda)
      : config(torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true),
        activities(cuda ? std::set{ActivityType::CPU, ActivityType::CUDA} : std::set{ActivityType::CPU}) {
    kineto::prepareProfiler(config, activities);
  }
  ~Recording() {
    if (stopped) return;
    if (!enabled)
      start();  // a profiler that is only prepared cannot be stopped, and would break the next one
    stop();
  }

  void start() {
    kineto::enableProfiler(
        config, activities,
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
    enabled = true;
  }

  // The span that trace viewers take for a step; it must end before the profiler does.
  void mark_step(int64_t number) {
    span.reset();
    span.emplace(at::RecordScope::USER_SCOPE);
    if (span->isActive()) span->before(fmt::format("ProfilerStep#{}", number));
  }

  std::unique_ptr<kineto::ProfilerResult> stop() {
    span.reset();
    stopped = true;
    return kineto::disableProfiler();
  }

  torch::profiler::impl::ProfilerConfig config;
  std::set<ActivityType> activities;
  bool enabled = false;
  bool stopped = false;
  std::optional<at::RecordFunction> span;
};

ProfilerPhase profiler_phase(const config::JobConfig::Profiling& o, int64_t steps_done) {
  const int64_t wait = o.profile_freq - (o.profiler_active + o.profiler_warmup);
  const int64_t at = steps_done % o.profile_freq;
  if (at < wait) return ProfilerPhase::kWait;
  return at < wait + o.profiler_warmup ? ProfilerPhase::kWarmUp : ProfilerPhase::kRecord;
}

Profiler::Profiler(const config::JobConfig::Profiling& options, ProfiledRun run, MemorySnapshotHooks hooks)
    : options_(options), run_(std::move(run)), hooks_(std::move(hooks)) {
  const std::filesystem::path traces = run_.dump_folder / options_.save_traces_folder,
                              snapshots = run_.dump_folder / options_.save_memory_snapshot_folder;
  if (options_.enable_profiling) require_place_for_folder(traces);
  if (options_.enable_memory_snapshot) require_place_for_folder(snapshots);
  if (options_.enable_profiling) {
    log_info("Profiling active. Traces will be saved at {}", traces.string());
    enter(profiler_phase(options_, run_.start_step), run_.start_step);
  }
  if (!options_.enable_memory_snapshot) return;
  if (hooks_.start_recording) {
    log_info("Memory profiler active. Snapshot will be saved at {}", snapshots.string());
    hooks_.start_recording(kSnapshotEntries);
  } else {
    log_info(
        "profiling.enable_memory_snapshot: a CPU has no caching allocator to record, so no snapshot is "
        "written");
  }
}

Profiler::~Profiler() = default;

void Profiler::step(int64_t step) {
  if (options_.enable_profiling) {
    if (recording_ && recording_->enabled && step % options_.profile_freq == 0) save_trace(step);
    enter(profiler_phase(options_, step), step);
  }
  if (options_.enable_memory_snapshot && step % options_.profile_freq == 0)
    save_snapshot(std::to_string(step));
}

void Profiler::out_of_memory(int64_t steps_done) {
  if (options_.enable_memory_snapshot) save_snapshot(fmt::format("{}_exit", steps_done));
}

void Profiler::enter(ProfilerPhase phase, int64_t steps_done) {
  if (phase == ProfilerPhase::kWait) return;
  if (!recording_) recording_ = std::make_unique<Recording>(run_.cuda);
  if (phase == ProfilerPhase::kWarmUp) return;
  if (!recording_->enabled) recording_->start();
  recording_->mark_step(steps_done + 1);
}

void Profiler::save_trace(int64_t step) {
  log_info("Dumping profiler traces at step {}", step);
  const auto begin = std::chrono::steady_clock::now();
  const auto result = recording_->stop();
  recording_.reset();
  const auto folder = iteration_folder(run_.dump_folder / options_.save_traces_folder, std::to_string(step));
  if (folder.empty()) return;
  save_result(*result, folder / fmt::format("rank{}_trace.json", run_.rank));
  log_info("Finished dumping profiler traces in {:.2f} seconds", seconds_since(begin));
}

void Profiler::save_snapshot(const std::string& iteration) {
  if (!hooks_.snapshot_pickle) return;
  log_info("Dumping memory snapshot at step {}", iteration);
  const auto begin = std::chrono::steady_clock::now();
  const auto folder = iteration_folder(run_.dump_folder / options_.save_memory_snapshot_folder, iteration);
  if (folder.empty()) return;
  try {
    write_file_atomic(folder / fmt::format("rank{}_memory_snapshot.pickle", run_.rank),
                      hooks_.snapshot_pickle());
    log_info("Finished dumping memory snapshot in {:.2f} seconds", seconds_since(begin));
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

}  // namespace hyperion::metrics
