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

// That `rank` gives the end of rank `lost` as the reason, and calls no other one lost or silent. Of rank 0 it
// may learn only by its store, that has ended too.
inline void check_lost(const std::vector<RankOutcome>& outcomes, int rank, int lost) {
  const RankOutcome& outcome = outcomes.at(static_cast<size_t>(rank));
  CAPTURE(rank, outcome.error, outcome.output);
  const std::string reason = ": rank " + std::to_string(lost) + " is lost: see its log first";
  const bool by_store =
      lost == 0 &&
      outcome.error.ends_with("; rank 0, which holds the rendezvous, does not answer: see its log first");
  CHECK((by_store || outcome.error.ends_with(reason)));
}

// The same of a rank that is there, but does not answer. Where the host did not run another one for as long
// as they ask (parallel/health/failure_reports.h), that one is named as well, or instead.
inline void check_silent(const std::vector<RankOutcome>& outcomes, int rank, int silent) {
  const RankOutcome& outcome = outcomes.at(static_cast<size_t>(rank));
  CAPTURE(rank, outcome.error, outcome.output);
  const std::string word = "; no word from rank " + std::to_string(silent) + ": see its log first";
  CHECK((outcome.error.find(word) != std::string::npos || !host_ran(outcomes)));
}

}  // namespace hyperion
