// Ranks that lose another one, and that they name it.
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <signal.h>

#include "tests/support/ranks.h"

namespace hyperion {

// Kills rank `killed` when all have come here: none is still in the operation before.
inline void kill_when_others_are_here(const parallel::Environment& own, int killed) {
  reach(1);
  if (own.rank != killed) return;
  for (int rank = 0; rank < own.world_size; ++rank) wait_until_reached(rank, 1);
  raise(SIGKILL);
}

// A peer that has sent its part over a socket and waits for another one, or that the host has not run for two
// seconds, is named beside the lost rank. Ranks ask each other for a few seconds (parallel/post_mortem.h):
// where the host did not run one of them for as long, the others may have to say that it does not answer.
inline void check_misses(const std::vector<RankOutcome>& outcomes, int rank, int lost) {
  const RankOutcome& outcome = outcomes.at(static_cast<size_t>(rank));
  CAPTURE(rank, outcome.error, outcome.output);
  const std::string before = "no word from rank";
  const size_t begin = outcome.error.find(before), end = outcome.error.find(':', begin);
  if (begin == std::string::npos) {
    CHECK_FALSE(host_ran(outcomes));
    CHECK(outcome.error.find("does not answer: see its log first") != std::string::npos);
    return;
  }
  REQUIRE(end != std::string::npos);
  const std::string ranks = outcome.error.substr(begin + before.size(), end - begin - before.size()) + ' ';
  CHECK(ranks.find(' ' + std::to_string(lost) + ' ') != std::string::npos);
}

}  // namespace hyperion
