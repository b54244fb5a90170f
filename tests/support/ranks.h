// Runs a function as several ranks: forks one process per rank, collects what each returns, and ends
// stragglers.
//
// Fork first: the calling test must not have used libtorch, because threads do not survive a fork (each
// TEST_CASE is its own process under ctest). Assertions belong in the caller, on the values the ranks return.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "parallel/environment.h"

namespace hyperion {

// How a rank ended when failure is part of the test.
struct RankOutcome {
  std::vector<double> values;  // what the function returned
  std::string error;   // what() of the exception it threw; "signal 9", "timed out" when it could not report
  int exit_code = 0;   // 0; the ExitCode of an Error; 1 for other exceptions; 128 + signal
  std::string output;  // the last lines it wrote to stdout and stderr
};

using RankFunction = std::function<std::vector<double>(const Environment& environment)>;

// Every rank must succeed: returns the values by rank, else throws naming the first rank that failed, its
// error and its last lines. The environment has a port that listens already; RANK, WORLD_SIZE, ... are set as
// well.
std::vector<std::vector<double>> run_ranks(int ranks, const RankFunction& function,
                                           std::chrono::seconds timeout = std::chrono::seconds(60));

// The same for tests of failure: never throws for a failing rank.
std::vector<RankOutcome> run_ranks_outcome(int ranks, const RankFunction& function,
                                           std::chrono::seconds timeout = std::chrono::seconds(60));

}  // namespace hyperion
