#include "base/failpoint.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace hyperion {
namespace {

constexpr auto kPoints = std::to_array<std::string_view>(
    {"init.before_pg",    "init.after_pg",    "init.model",       "load.meta",          "load.mid_data",
     "load.done",         "step.data",        "step.fwd",         "step.bwd",           "step.wgrad",
     "step.send",         "step.receive",     "step.gather",      "step.sum",           "step.tied",
     "step.rows",         "step.keys",        "step.counts",      "step.opt",           "ckpt.plan",
     "ckpt.pool",         "ckpt.stage",       "ckpt.before_data", "ckpt.mid_data",      "ckpt.after_data",
     "ckpt.await_commit", "ckpt.before_meta", "ckpt.after_meta",  "ckpt.before_commit", "ckpt.after_commit",
     "purge.before",      "purge.mid",        "purge.after",      "file.open",          "file.write",
     "file.fsync",        "file.close",       "file.rename",      "file.read",          "shutdown"});
// Points where errno:NAME has an effect, and where short and flip have one.
constexpr auto kErrnoPoints = std::to_array<std::string_view>(
    {"ckpt.pool", "file.open", "file.write", "file.fsync", "file.close", "file.rename", "file.read"});
constexpr auto kDataPoints = std::to_array<std::string_view>({"file.write", "file.read"});

enum class Action { kKill, kStop, kAbort, kThrow, kSleep, kWait, kErrno, kShort, kFlip };
constexpr auto kActions = std::to_array<std::string_view>(  // in this order; in capitals: a value
    {"kill", "stop", "abort", "throw", "sleep:SECONDS", "wait:PATH", "errno:NAME", "short", "flip"});

struct Fault {
  std::string point, on;
  int rank = -1;  // -1: every rank
  uint64_t nth = 1;
  std::optional<Action> action;
  int error_number = 0;
  double seconds = 0;
  std::string awaited;  // a path
  uint64_t calls = 0;
};

std::atomic<bool> armed{false};
std::mutex faults_mutex;
std::vector<Fault> faults;  // guarded by faults_mutex

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

template <typename Number>
Number require_number(std::string_view text, std::string_view what) {
  const auto value = parse_number<Number>(text);
  if (!value || !(*value >= 0 && *value <= 1'000'000))
    throw_config("FAULT: {} is \"{}\", expected a number from 0 to 1000000", what, text);
  return *value;
}

// Splits "key=value" at the first `separator`; the second part is empty without one.
std::pair<std::string_view, std::string_view> cut_at(char separator, std::string_view text) {
  const size_t end = std::min(text.find(separator), text.size());
  return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
}

int parse_errno(std::string_view name) {
  for (int number = 1; number < 200; ++number) {
    const char* known = ::strerrorname_np(number);
    if (known != nullptr && name == known) return number;
  }
  throw_config("FAULT: \"{}\" is not the name of an error such as ENOSPC or EIO", name);
}

void parse_action(std::string_view text, Fault& fault) {
  const auto [name, value] = cut_at(':', text);
  const auto match = std::ranges::find_if(
      kActions, [&, name = name](std::string_view known) { return cut_at(':', known).first == name; });
  if (match == kActions.end() || (match->find(':') == match->npos) != value.empty() || text.ends_with(':'))
    throw_config("FAULT: action is \"{}\", expected one of: {}", text, fmt::join(kActions, ", "));
  fault.action = static_cast<Action>(match - kActions.begin());
  if (fault.action == Action::kSleep) fault.seconds = require_number<double>(value, "sleep");
  if (fault.action == Action::kWait) fault.awaited = value;
  if (fault.action == Action::kErrno) fault.error_number = parse_errno(value);
}

void require_valid(const Fault& fault, std::string_view text) {
  if (fault.point.empty() || !fault.action)
    throw_config(
        "FAULT: \"{}\" names no {}; expected for example \"rank=1;point=ckpt.after_data;nth=2;action=kill\"",
        text, fault.point.empty() ? "point" : "action");
  if (!contains(kPoints, fault.point))
    throw_config("FAULT: point \"{}\" does not exist, expected one of: {}", fault.point,
                 fmt::join(kPoints, ", "));
  const bool changes_data = fault.action == Action::kShort || fault.action == Action::kFlip;
  if ((fault.action == Action::kErrno && !contains(kErrnoPoints, fault.point)) ||
      (changes_data && !contains(kDataPoints, fault.point)))
    throw_config(
        "FAULT: point {} makes no system call that this action could change; use a file.* point with on=",
        fault.point);
}

Fault parse_fault(std::string_view text) {
  Fault fault;
  for (const std::string_view part : split(text, ';')) {
    const auto [key, value] = cut_at('=', part);
    if (key == "rank")
      fault.rank = require_number<int>(value, "rank");
    else if (key == "nth")
      fault.nth = require_number<uint64_t>(value, "nth");
    else if (key == "point")
      fault.point = value;
    else if (key == "on")
      fault.on = value;
    else if (key == "action")
      parse_action(value, fault);
    else
      throw_config("FAULT: \"{}\" is not one of rank=, point=, nth=, on=, action=", part);
  }
  require_valid(fault, text);
  return fault;
}

// The fault that this call of the point triggers, if any.
std::optional<Fault> triggered(std::string_view point, std::string_view subject) {
  const std::lock_guard lock(faults_mutex);
  std::optional<Fault> hit;
  for (Fault& fault : faults) {
    if (fault.point != point || subject.find(fault.on) == subject.npos) continue;
    ++fault.calls;
    if (!hit && (fault.nth == 0 || fault.calls == fault.nth)) hit = fault;
  }
  return hit;
}

}  // namespace

void arm_faults(std::string_view spec, int rank) {
  std::vector<Fault> parsed;
  for (const std::string_view text : spec.empty() ? std::vector<std::string_view>() : split(spec, ',')) {
    Fault fault = parse_fault(text);
    if (fault.rank < 0 || fault.rank == rank) parsed.push_back(std::move(fault));
  }
  const std::lock_guard lock(faults_mutex);
  faults = std::move(parsed);
  armed.store(!faults.empty(), std::memory_order_relaxed);
}

void arm_faults_from_environment(bool allowed, int rank) {
  const char* spec = std::getenv("FAULT");
  if (spec == nullptr || *spec == '\0') return;
  if (!allowed)
    throw_config(
        "the environment variable FAULT is set (\"{:.200}\"), which makes the program fail on purpose: unset "
        "it, or give --allow-faults in a test",
        spec);
  arm_faults(spec, rank);
}

FaultEffect failpoint(std::string_view point, std::string_view subject) {
  if (!armed.load(std::memory_order_relaxed)) return {};
  if (!contains(kPoints, point)) throw_bug("failpoint {} is not in the list of base/failpoint.cpp", point);
  const std::optional<Fault> fault = triggered(point, subject);
  if (!fault) return {};
  FaultEffect effect;
  switch (*fault->action) {
    case Action::kKill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Action::kStop:
      log_warning("The fault armed at {} stops this process", point);
      ::kill(::getpid(), SIGSTOP);
      break;
    case Action::kAbort:
      std::abort();
    case Action::kThrow:
      throw_bug("the fault armed at {} was thrown", point);
    case Action::kSleep:
      if (fault->nth > 0) log_warning("The fault armed at {} sleeps for {} s", point, fault->seconds);
      std::this_thread::sleep_for(std::chrono::duration<double>(fault->seconds));
      break;
    case Action::kWait:
      log_warning("The fault armed at {} waits until {} exists", point, fault->awaited);
      while (::access(fault->awaited.c_str(), F_OK) != 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      break;
    case Action::kErrno:
      effect.error_number = fault->error_number;
      break;
    case Action::kShort:
      effect.short_write = true;
      break;
    case Action::kFlip:
      effect.flip = true;
      break;
  }
  return effect;
}

}  // namespace hyperion
