// How the ranks of a job exchange small values, and how they fail together: an error of one rank becomes the
// same error on all of them.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/pack.h"

namespace hyperion {

// A group of ranks that exchange texts. parallel/'s Communicator is one; one process alone needs no group.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;  // rank 0 coordinates
  virtual int size() const = 0;
  // All ranks must call these two in the same order. They throw Error(kCommunication).
  // Every rank's text, by rank, on rank 0; nothing on the others.
  virtual std::vector<std::string> gather(const std::string& text) = 0;
  // Rank 0's text on every rank; the other ranks' texts are ignored.
  virtual std::string broadcast(const std::string& text) = 0;
};

class SoloCoordinator : public Coordinator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& text) override { return {text}; }
  std::string broadcast(const std::string& text) override { return text; }
};

// What was read is intact but does not fit this job: other names, shapes, types or parts. Not damage, from
// which a job goes back to the checkpoint before: an incompatible checkpoint is for the user to settle.
class IncompatibleCheckpoint : public Error {
 public:
  explicit IncompatibleCheckpoint(const std::string& message) : Error(ExitCode::kBadData, message) {}
};
template <typename... Args>
[[noreturn]] void throw_incompatible(fmt::format_string<Args...> format, Args&&... args) {
  throw IncompatibleCheckpoint(fmt::format(format, std::forward<Args>(args)...));
}

// `message`, with "rank 3: " before it unless it begins so.
std::string with_rank(int rank, const std::string& message);

// Whether something else may succeed where this failed: an older checkpoint in the place of a damaged one,
// the next save. Not what is the same whatever is tried: an incompatible checkpoint, a missing permission.
bool is_damage(const Error& error);

// An error as bytes and back: code, type (Error, IncompatibleCheckpoint, PermissionDenied) and message.
std::string encode_error(const Error& error);
[[noreturn]] void throw_encoded_error(const std::string& bytes);

// The functions below without their types: packed results.
std::vector<std::string> run_on_every_rank(Coordinator& ranks, const std::function<std::string()>& action);
std::string run_on_rank_0(Coordinator& ranks, const std::function<std::string()>& action);

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

// Runs `action` on every rank; returns on rank 0 what it returned (if anything), by rank, and nothing on the
// others. When it throws on any rank, every rank throws the same Error: of a failure that is no damage (see
// is_damage) when there is one, else of damage; of the lowest rank. The message names the rank and how many
// others failed alike, except where the cause is the same on all ranks (usage, an incompatible checkpoint, a
// missing permission). A rank whose action threw something else than an Error throws that, the others
// Error(kResources) or Error(kBug). Error(kCommunication) of an action is thrown without an exchange.
template <typename Action>
auto collectively(Coordinator& ranks, Action&& action) {
  using Value = std::invoke_result_t<Action&>;
  std::vector<std::string> packed = run_on_every_rank(ranks, [&] { return run_and_pack(action); });
  if constexpr (!std::is_void_v<Value>) return unpack_each<Value>(std::move(packed));
}

// Runs `action` on rank 0 alone; every rank returns its value, or throws its Error with the message as it is.
template <typename Action>
auto from_rank_0(Coordinator& ranks, Action&& action) {
  using Value = std::invoke_result_t<Action&>;
  const std::string packed = run_on_rank_0(ranks, [&] { return run_and_pack(action); });
  if constexpr (!std::is_void_v<Value>) return unpack<Value>(packed);
}

// Rank 0 combines the values of all ranks, given by rank; every rank returns the result. `combine` must not
// throw.
template <typename Value, typename Combine>
auto combine_on_rank_0(Coordinator& ranks, const Value& own, Combine&& combine) {
  using Result = std::invoke_result_t<Combine&, std::vector<Value>>;
  std::vector<Value> values = unpack_each<Value>(ranks.gather(pack(own)));
  return unpack<Result>(ranks.broadcast(ranks.rank() == 0 ? pack(combine(std::move(values))) : ""));
}

}  // namespace hyperion
