// Are all ranks of the same job? They compare fingerprints: of configuration, binary and mesh where they meet
// (parallel/rendezvous.h), of data and seed once the groups are there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace hyperion::parallel {

using Fingerprint =
    std::map<std::string, std::string>;  // "training.steps" -> "100", "binary" -> "0.1.0 3f2a..."

// Collective. Throws Error(kUsage) on every rank when any entry differs: the keys, with the value of every
// rank. Ranks that agree exchange one XXH3 hash of all entries; only where it differs those go to rank 0.
void require_agreement(Communicator& group, const Fingerprint& fingerprint);

// What `own` has otherwise than `rank0`; "" for an entry that it does not have.
Fingerprint differing_entries(const Fingerprint& rank0, const Fingerprint& own);

// What `ranks` (rank, its entries that differ) have otherwise than rank 0, as a sentence.
struct DifferingRank {
  int rank = 0;
  Fingerprint entries;
};
std::string describe_differences(const Fingerprint& rank0, const std::vector<DifferingRank>& ranks);

}  // namespace hyperion::parallel
