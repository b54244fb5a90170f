// Ranks exchange small values, and fail together: an error of one rank becomes the same error on all of
// them.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/pack.h"

namespace hyperion {

// A Coordinator is a group of ranks that exchange texts. parallel/'s Communicator implements it; a single
// process uses SoloCoordinator.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;  // rank 0 coordinates
  virtual int size() const = 0;
  // All ranks must call these two in the same order. They throw Error(kCommunication).
  // gather() returns every rank's text, by rank, on rank 0, and an empty list on the others.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // broadcast() returns rank 0's text on every rank; the other ranks' texts are ignored.
  virtual std::string broadcast(const std::string& text) = 0;
};

class SoloCoordinator : public Coordinator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::string broadcast(const std::string& text) override { return text; }
};

// A checkpoint that is intact but does not fit this job: other names, shapes, types or parts. It is not
// damage, after which a job falls back to an older checkpoint: the user must resolve it.
class IncompatibleCheckpoint : public Error {
 public:
  explicit IncompatibleCheckpoint(const std::string& message) : Error(ExitCode::kBadData, message) {}
};
template <typename... Args>
[[noreturn]] void throw_incompatible(fmt::format_string<Args...> format, Args&&... args) {
  throw IncompatibleCheckpoint(fmt::format(format, std::forward<Args>(args)...));
}

// Returns `message` with the prefix "rank 3: ", unless it has that prefix.
std::string with_rank(int rank, const std::string& message);

// Returns whether another attempt may succeed: an older checkpoint instead of a damaged one, or the next
// save. False for errors that every attempt would meet: an incompatible checkpoint, a missing permission.
bool is_damage(const Error& error);

// Encodes an error as bytes and throws it from them: code, type (Error, IncompatibleCheckpoint,
// PermissionDenied) and message.
std::string encode_error(const Error& error);
[[noreturn]] void throw_encoded_error(const std::string& bytes);

// Type-erased versions of collectively() and from_rank_0(). Results are packed.
std::vector<std::string> run_on_every_rank(Coordinator& group, const std::function<std::string()>& action);
std::string run_on_rank_0(Coordinator& group, const std::function<std::string()>& action);

template <typename Action>
std::string run_and_pack(Action& action) {
  if constexpr (std::is_void_v<std::invoke_result_t<Action&>>) {
    action();
    return {};
  } else {
    return pack(action());
  }
}

template <typename Value>
std::vector<Value> unpack_each(std::vector<std::string> packed) {
  std::vector<Value> values;
  for (std::string& one : packed) values.push_back(unpack<Value>(std::exchange(one, {})));
  return values;
}

// Runs `action` on every rank. Returns the results (if any), by rank, on rank 0, and an empty list on the
// others. If `action` throws on any rank, every rank throws the same Error: that of the lowest rank whose
// failure is not damage (see is_damage), or if there is none, of the lowest rank. The message names the
// rank and the number of other ranks that failed alike, except if the cause is the same on all ranks
// (usage, an incompatible checkpoint, a missing permission). A rank whose action threw something else than
// an Error rethrows it; the others throw Error(kResources) or Error(kBug). Error(kCommunication) of an
// action is thrown without an exchange.
template <typename Action>
auto collectively(Coordinator& group, Action&& action) {
  using Value = std::invoke_result_t<Action&>;
  std::vector<std::string> packed = run_on_every_rank(group, [&] { return run_and_pack(action); });
  if constexpr (!std::is_void_v<Value>) return unpack_each<Value>(std::move(packed));
}

// Runs `action` on rank 0 only. Every rank returns its value, or throws its Error with the message
// unchanged.
template <typename Action>
auto from_rank_0(Coordinator& group, Action&& action) {
  using Value = std::invoke_result_t<Action&>;
  const std::string packed = run_on_rank_0(group, [&] { return run_and_pack(action); });
  if constexpr (!std::is_void_v<Value>) return unpack<Value>(packed);
}

// Combines the values of all ranks, ordered by rank, on rank 0; every rank returns the result. `combine`
// must not throw.
template <typename Value, typename Combine>
auto combine_on_rank_0(Coordinator& group, const Value& value, Combine&& combine) {
  using Result = std::invoke_result_t<Combine&, std::vector<Value>>;
  std::vector<Value> values = unpack_each<Value>(group.gather(pack(value)));
  return unpack<Result>(group.broadcast(group.rank() == 0 ? pack(combine(std::move(values))) : ""));
}

}  // namespace hyperion
