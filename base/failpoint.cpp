#include "base/failpoint.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/ranges.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

namespace hyperion {
namespace {

struct FaultPoint {
  std::string_view name;
  bool takes_errno = false, takes_data = false;  // errno:..; short and flip
};

constexpr std::array kFaultPoints = {
    FaultPoint{"init.before_pg"},
    FaultPoint{"init.after_pg"},
    FaultPoint{"init.model"},
    FaultPoint{"load.meta"},
    FaultPoint{"load.mid_data"},
    FaultPoint{"load.done"},
    FaultPoint{"step.data"},
    FaultPoint{"step.fwd"},
    FaultPoint{"step.bwd"},
    FaultPoint{"step.sum"},
    FaultPoint{"step.opt"},
    FaultPoint{"ckpt.plan"},
    FaultPoint{"ckpt.pool", /*takes_errno=*/true},
    FaultPoint{"ckpt.stage"},
    FaultPoint{"ckpt.before_data"},
    FaultPoint{"ckpt.mid_data"},
    FaultPoint{"ckpt.after_data"},
    FaultPoint{"ckpt.await_commit"},
    FaultPoint{"ckpt.before_meta"},
    FaultPoint{"ckpt.after_meta"},
    FaultPoint{"ckpt.before_commit"},
    FaultPoint{"ckpt.after_commit"},
    FaultPoint{"purge.before"},
    FaultPoint{"purge.mid"},
    FaultPoint{"purge.after"},
    FaultPoint{"file.open", true},
    FaultPoint{"file.write", true, true},
    FaultPoint{"file.fsync", true},
    FaultPoint{"file.close", true},
    FaultPoint{"file.rename", true},
    FaultPoint{"file.read", true, true},
    FaultPoint{"shutdown"},
};
constexpr std::string_view kActions =
    "kill, stop, abort, throw, sleep:SECONDS, wait:PATH, errno:NAME, short, flip";

enum class Action { kKill, kStop, kAbort, kThrow, kSleep, kWait, kErrno, kShort, kFlip };

struct Fault {
  std::string point, on;
  int rank = -1;  // -1: all
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

const FaultPoint* find_point(std::string_view name) {
  const auto found = std::ranges::find(kFaultPoints, name, &FaultPoint::name);
  return found == kFaultPoints.end() ? nullptr : &*found;
}

template <typename Number>
Number parse_number(std::string_view text, std::string_view what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 1'000'000))
    throw_config("FAULT: {} is \"{}\", expected a number from 0 to 1000000", what, text);
  return value;
}

int parse_errno(std::string_view name) {
  for (int number = 1; number < 200; ++number) {
    const char* known = ::strerrorname_np(number);
    if (known != nullptr && name == known) return number;
  }
  throw_config("FAULT: \"{}\" is not the name of an error such as ENOSPC or EIO", name);
}

void parse_action(std::string_view text, Fault& fault) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view value = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  constexpr std::array<std::string_view, 9> kNames = {"kill", "stop",  "abort", "throw", "sleep",
                                                      "wait", "errno", "short", "flip"};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) throw_config("FAULT: action is \"{}\", expected one of: {}", text, kActions);
  fault.action = static_cast<Action>(found - kNames.begin());
  const bool wants_value =
      fault.action == Action::kSleep || fault.action == Action::kWait || fault.action == Action::kErrno;
  if (wants_value == value.empty() || text.ends_with(':'))
    throw_config("FAULT: action is \"{}\", expected one of: {}", text, kActions);
  if (fault.action == Action::kSleep) fault.seconds = parse_number<double>(value, "sleep");
  if (fault.action == Action::kWait) fault.awaited = value;
  if (fault.action == Action::kErrno) fault.error_number = parse_errno(value);
}

void require_valid(const Fault& fault, std::string_view text) {
  if (fault.point.empty() || !fault.action)
    throw_config(
        "FAULT: \"{}\" names no {}; expected for example \"rank=1;point=ckpt.after_data;nth=2;action=kill\"",
        text, fault.point.empty() ? "point" : "action");
  const FaultPoint* point = find_point(fault.point);
  if (point == nullptr) {
    std::vector<std::string_view> names;
    for (const FaultPoint& known : kFaultPoints) names.push_back(known.name);
    throw_config("FAULT: point \"{}\" does not exist, expected one of: {}", fault.point,
                 fmt::join(names, ", "));
  }
  const bool needs_errno = fault.action == Action::kErrno;
  const bool needs_data = fault.action == Action::kShort || fault.action == Action::kFlip;
  if ((needs_errno && !point->takes_errno) || (needs_data && !point->takes_data))
    throw_config(
        "FAULT: point {} makes no system call that this action could change; use a file.* point with on=",
        fault.point);
}

Fault parse_fault(std::string_view text) {
  Fault fault;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(';', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals);
    const std::string_view value = equals < part.size() ? part.substr(equals + 1) : std::string_view();
    if (key == "rank")
      fault.rank = parse_number<int>(value, "rank");
    else if (key == "nth")
      fault.nth = parse_number<uint64_t>(value, "nth");
    else if (key == "point")
      fault.point = value;
    else if (key == "on")
      fault.on = value;
    else if (key == "action")
      parse_action(value, fault);
    else
      throw_config("FAULT: \"{}\" is not one of rank=, point=, nth=, on=, action=", part);
    at = end + 1;
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
  for (size_t at = 0; !spec.empty() && at <= spec.size();) {
    const size_t end = std::min(spec.find(',', at), spec.size());
    Fault fault = parse_fault(spec.substr(at, end - at));
    if (fault.rank < 0 || fault.rank == rank) parsed.push_back(std::move(fault));
    at = end + 1;
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
  if (find_point(point) == nullptr) throw_bug("failpoint {} is not in the list of base/failpoint.cpp", point);
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
