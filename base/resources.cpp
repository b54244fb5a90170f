#include "base/resources.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <latch>
#include <limits>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

namespace hyperion {
namespace fs = std::filesystem;
namespace {

using Kind = ExhaustedResource::Kind;

// The size that an allocator's message says was requested: "tried to allocate 4096 bytes", "Tried to
// allocate 2.00 GiB".
std::string asked_for(std::string_view text) {
  constexpr std::string_view kMark = "ried to allocate ";
  const size_t mark = text.find(kMark);
  if (mark == std::string_view::npos) return "";
  const std::string_view size_text = text.substr(mark + kMark.size());
  const size_t number = size_text.find_first_not_of("0123456789.");
  if (number == 0 || number == std::string_view::npos || size_text[number] != ' ') return "";
  const size_t unit = size_text.find_first_of(". ,;\n", number + 1);
  return fmt::format(": {} were asked for at once", size_text.substr(0, unit));
}

double number_in(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;
  return stream >> value ? value : std::numeric_limits<double>::infinity();  // "max": no limit
}

// The value of a field of /proc/meminfo, in bytes.
double meminfo(const fs::path& root, std::string_view name) {
  std::ifstream stream(root / "proc/meminfo");
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(name)) return 1024 * std::strtod(line.c_str() + name.size(), nullptr);
  return 0;
}

// Lowers `limit` to that of the cgroup `name` or of one above it, whose files are in `mount`. A task's own
// cgroup (SLURM's task_N) is no limit of all ranks of the host.
void apply_cgroup(const fs::path& mount, const std::string& name, const char* memory_file,
                  const char* swap_file, double swap, MemoryLimit& limit) {
  for (fs::path group = fs::path(name).relative_path();; group = group.parent_path()) {
    if (group.filename().native().starts_with("task_")) continue;
    const double memory = number_in(mount / group / memory_file);
    const double bytes = memory + (swap_file ? std::min(swap, number_in(mount / group / swap_file)) : swap);
    if (bytes < limit.bytes) limit = {bytes, fmt::format("the limit of cgroup /{}", group.string())};
    if (group.empty()) return;
  }
}

// Returns nullopt for an errno that says something else.
std::optional<ExhaustedResource> too_many_files(int number) {
  if (number == ENFILE)
    return ExhaustedResource{Kind::kFiles,
                             "the host has too many open files (ENFILE); raise its limit (fs.file-max)"};
  if (number != EMFILE) return std::nullopt;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return ExhaustedResource{
      Kind::kFiles,
      fmt::format("too many open files and sockets (EMFILE): this process may have {}; raise the "
                  "limit (ulimit -n)",
                  limit.rlim_cur)};
}

// The mapped pages of this process, in bytes, as RLIMIT_AS counts them.
double mapped_memory() {
  return number_in("/proc/self/statm") * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::optional<ExhaustedResource> exhausted_resource(const std::exception& error) {
  const std::string_view text = error.what();
  const auto contains = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    if (system->code() == std::errc::resource_unavailable_try_again)
      return ExhaustedResource{Kind::kThreads, "no further thread could be started"};
    if (system->code() == std::errc::not_enough_memory)
      return ExhaustedResource{Kind::kMemory, "memory ran out"};
    return too_many_files(system->code().value());
  }
  for (const int number : {ENFILE, EMFILE})  // the second text is the beginning of the first
    if (contains(std::strerror(number))) return too_many_files(number);
  // libtorch's message without an errno, if it has no seed from the system.
  if (contains("Unable to open /dev/urandom") && ::access("/dev/urandom", R_OK) == 0)
    return too_many_files(EMFILE);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const std::length_error*>(&error) != nullptr ||
      contains("DefaultCPUAllocator: can't allocate memory") ||
      contains("DefaultCPUAllocator: not enough memory") || contains("out of memory") ||
      contains("Cannot allocate memory"))
    return ExhaustedResource{Kind::kMemory, "memory ran out" + asked_for(text),
                             contains("CUDA out of memory") || contains("Cuda failure")};
  // oneDNN's message if it gets no memory for an operation that it supports (an unsupported one fails
  // earlier, with a "descriptor").
  for (const std::string_view failed :
       {"could not create a primitive", "could not create a memory", "could not execute a primitive"})
    if (contains(failed) && !contains("descriptor"))
      return ExhaustedResource{Kind::kMemory, fmt::format("memory ran out: oneDNN {}", failed)};
  if (contains("Storage size calculation overflowed"))
    return ExhaustedResource{Kind::kMemory, "a tensor would be larger than any memory"};
  return std::nullopt;
}

MemoryLimit host_memory(const fs::path& root) {
  const double swap = meminfo(root, "SwapTotal:");
  MemoryLimit limit{meminfo(root, "MemTotal:") + swap, "this host's memory and swap"};
  if (limit.bytes <= 0) limit.bytes = std::numeric_limits<double>::infinity();
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/name", version 1: "5:memory:/name"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string name = line.substr(second + 1);
    if (line.starts_with("0::"))
      apply_cgroup(root / "sys/fs/cgroup", name, "memory.max", "memory.swap.max", swap, limit);
    else if (controllers.find(",memory,") != std::string::npos)
      apply_cgroup(root / "sys/fs/cgroup/memory", name, "memory.limit_in_bytes", nullptr, swap, limit);
  }
  return limit;
}

std::optional<MemoryLimit> process_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return MemoryLimit{static_cast<double>(limit.rlim_cur),
                     "the limit of this process's address space (ulimit -v)"};
}

void require_threads(int count) {
  const std::system_error none(std::make_error_code(std::errc::resource_unavailable_try_again));
  // A thread that gets a stack may get no allocator arena any more, which would end the process.
  constexpr double kArena = 16 << 20;
  if (const auto limit = process_memory()) {
    rlimit stack{};
    const bool limited = ::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
    const double each = kArena + (limited ? static_cast<double>(stack.rlim_cur) : 8 << 20);
    if (const double mapped = mapped_memory(); std::isfinite(mapped) && mapped + count * each > limit->bytes)
      throw none;
  }
  std::latch started(count + 1);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(count));
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&started] { started.arrive_and_wait(); });
  } catch (...) {
    started.count_down(1 + count - static_cast<int>(threads.size()));
    throw;
  }
  started.count_down();
}

void require_open_files(size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::error_code unknown;
  size_t open = 0;
  for (fs::directory_iterator at("/proc/self/fd", unknown), end; !unknown && at != end; at.increment(unknown))
    ++open;
  if (unknown && unknown != std::errc::too_many_files_open) return;
  if (unknown || open + count > limit.rlim_cur) throw std::system_error(EMFILE, std::generic_category());
}

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // below the hard limit it cannot be refused
}

}  // namespace hyperion
