#include "trainer/metrics/profiler.h"

#include <cstdlib>
#include <new>
#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>

#include "base/error.h"
#include "base/files.h"
#include "parallel/comm/trace_range.h"
#include "tests/support/temporary_folder.h"

namespace {

thread_local int64_t allocations = 0;  // of this thread

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace hyperion::metrics {
namespace {

config::JobConfig::Profiling every_4_steps() {
  return {.enable_profiling = true, .profile_freq = 4, .profiler_warmup = 1};
}

ProfiledRun run_in(const test::TemporaryFolder& folder, int64_t start_step = 0) {
  return {.dump_folder = folder.path(), .rank = 2, .start_step = start_step};
}

void train_one_step() {
  RECORD_FUNCTION("Hyperion::test_span", {});
  at::mm(at::ones({8, 8}), at::ones({8, 8}));
}

std::vector<nlohmann::json> events_of(const std::filesystem::path& trace) {
  return nlohmann::json::parse(read_file(trace)).at("traceEvents").get<std::vector<nlohmann::json>>();
}

int count(const std::vector<nlohmann::json>& events, const std::string& name) {
  int found = 0;
  for (const auto& event : events)
    found += event.value("name", "") == name && event.value("ph", "") == "X" ? 1 : 0;
  return found;
}

}  // namespace

TEST_CASE("The profiler waits then warms up then records within each cycle") {
  const config::JobConfig::Profiling options;  // v0.2.2's defaults: 10, 3 and 1
  for (const int64_t cycle : {0, 10, 20}) {
    for (int64_t step = 0; step < 6; ++step)
      CHECK(profiler_phase(options, cycle + step) == ProfilerPhase::kWait);
    for (int64_t step = 6; step < 9; ++step)
      CHECK(profiler_phase(options, cycle + step) == ProfilerPhase::kWarmUp);
    CHECK(profiler_phase(options, cycle + 9) == ProfilerPhase::kRecord);
  }
}

TEST_CASE("A chrome trace holds the operators and spans of the recorded steps only") {
  test::TemporaryFolder folder;
  auto options = every_4_steps();
  options.profiler_active = 2;
  Profiler profiler(options, run_in(folder));
  for (int64_t step = 1; step <= 9; ++step) {
    train_one_step();
    profiler.step(step);
  }
  for (const std::string step : {"4", "8"}) {
    const auto events =
        events_of(folder.path() / "profile_traces" / ("iteration_" + step) / "rank2_trace.json");
    CHECK(count(events, "aten::mm") == 2);
    CHECK(count(events, "Hyperion::test_span") == 2);
    CHECK(count(events, "ProfilerStep#" + step) == 1);
  }
  CHECK_FALSE(std::filesystem::exists(folder.path() / "profile_traces" / "iteration_9"));
}

TEST_CASE("A trace range names a unit and without a profiler allocates nothing") {
  const std::string unit = "layers.3 with a name that no small string holds";
  { const parallel::TraceRange first("forward", unit); }  // the thread's state of the profiler
  const int64_t before = allocations;
  for (int i = 0; i < 1000; ++i) const parallel::TraceRange range("forward", unit);
  CHECK(allocations == before);

  test::TemporaryFolder folder;
  Profiler profiler(every_4_steps(), run_in(folder));
  for (int64_t step = 1; step <= 4; ++step) {
    { const parallel::TraceRange range("forward", unit); }
    profiler.step(step);
  }
  const auto events = events_of(folder.path() / "profile_traces/iteration_4/rank2_trace.json");
  CHECK(count(events, "forward " + unit) == 1);
}

TEST_CASE("A profiler that ends or starts inside a cycle does no harm") {
  test::TemporaryFolder folder;
  {
    Profiler profiler(every_4_steps(), run_in(folder, 3));  // resumed right before the recorded step
    train_one_step();
    profiler.step(4);
  }
  CHECK(count(events_of(folder.path() / "profile_traces/iteration_4/rank2_trace.json"), "aten::mm") == 1);
  {
    Profiler profiler(every_4_steps(), run_in(folder));
    for (int64_t step = 1; step <= 3; ++step) profiler.step(step);  // ends while recording
    train_one_step();
  }
}

TEST_CASE("Memory snapshots come from the hooks at the profiling frequency and after an OOM") {
  test::TemporaryFolder folder;
  auto options = every_4_steps();
  options.enable_profiling = false;
  options.enable_memory_snapshot = true;
  size_t entries = 0;
  {
    Profiler profiler(options, run_in(folder),
                      {[&](size_t n) { entries = n; }, [] { return std::string("pickle"); }});
    for (int64_t step = 1; step <= 5; ++step) profiler.step(step);
    profiler.out_of_memory(5);
  }
  CHECK(entries == 100000);
  const auto base = folder.path() / "memory_snapshot";
  CHECK(read_file(base / "iteration_4" / "rank2_memory_snapshot.pickle") == "pickle");
  CHECK(read_file(base / "iteration_5_exit" / "rank2_memory_snapshot.pickle") == "pickle");
  CHECK_FALSE(std::filesystem::exists(base / "iteration_5"));
  Profiler without_hooks(options, run_in(folder));  // a CPU: nothing to record and no error
  without_hooks.step(4);
  without_hooks.out_of_memory(4);
}

}  // namespace hyperion::metrics
