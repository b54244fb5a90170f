// Runs a function as several ranks: forks one process per rank, collects what each returns, and ends
// stragglers.
//
// Fork first: the calling test must not have used libtorch, because threads do not survive a fork (each
// TEST_CASE is its own process under ctest). Assertions belong in the caller, on the values the ranks return.
#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/job/environment.h"

namespace hyperion {

// Less than the timeout of a group (CommOptions), so that ranks which wait for that are ended and count as
// failed.
inline constexpr std::chrono::seconds kRanksTimeout{200};
inline constexpr std::chrono::seconds kPatience{100};  // with what comes sooner or later

// How a rank ended when failure is part of the test.
struct RankOutcome {
  std::string error;   // what() of the exception it threw; "signal 9", "timed out" when it could not report
  int exit_code = 0;   // 0; the ExitCode of an Error; 1 for other exceptions; 128 + signal
  std::string output;  // the last lines it wrote to stdout and stderr
  // The longest time for which the host did not run it: ranks that stand still keep no promise about time.
  std::chrono::milliseconds stood_still{0};
};

// Returns whether the host ran every rank nearly all the time.
bool host_ran(const std::vector<RankOutcome>& outcomes);

// For tests of failure: never throws for a failing rank. The environment has a port that listens already;
// RANK, WORLD_SIZE, ... are set as well.
std::vector<RankOutcome> run_ranks_outcome(
    int ranks, const std::function<void(const parallel::Environment& environment)>& function,
    std::chrono::seconds timeout = kRanksTimeout);

// Every rank must succeed: returns the bytes of each, else throws naming the first rank that failed, its
// error and its last lines.
std::vector<std::string> run_ranks_bytes(
    int ranks, const std::function<std::string(const parallel::Environment& environment)>& function,
    std::chrono::seconds timeout);

// Between ranks of one run, while it lasts, and without a connection between them: a rank says how far it has
// come, by numbers that grow, and others wait until it is there, or has ended.
void reach(int mark);
bool has_reached(int rank, int mark);
void wait_until_reached(int rank, int mark);
void wait_for_end_of(int rank);
void wait_for_end_of_others();

// What a rank's result looks like as bytes on its way to the test: a trivially copyable value, or a vector of
// such values.
template <typename T>
struct RankResult {
  static_assert(std::is_trivially_copyable_v<T>,
                "a rank returns a trivially copyable value or a vector of them");
  static std::string to_bytes(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static T from_bytes(const std::string& bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

template <typename T>
struct RankResult<std::vector<T>> {
  static_assert(std::is_trivially_copyable_v<T>,
                "a rank returns a trivially copyable value or a vector of them");
  static std::string to_bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  static std::vector<T> from_bytes(const std::string& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

// Every rank must succeed: returns by rank what `function` returned.
template <typename Function>
auto run_ranks(int ranks, const Function& function, std::chrono::seconds timeout = kRanksTimeout) {
  using Result = std::invoke_result_t<Function, const parallel::Environment&>;
  const auto bytes = run_ranks_bytes(
      ranks,
      [&](const parallel::Environment& environment) {
        return RankResult<Result>::to_bytes(function(environment));
      },
      timeout);
  std::vector<Result> results;
  for (const std::string& result : bytes) results.push_back(RankResult<Result>::from_bytes(result));
  return results;
}

// The same for one rank, as where the test itself must not use libtorch or CUDA.
template <typename Function>
auto run_one_rank(const Function& function, std::chrono::seconds timeout = kRanksTimeout) {
  return run_ranks(1, function, timeout).front();
}

}  // namespace hyperion
