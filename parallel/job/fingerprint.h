// What must be equal on all ranks of a job: of configuration, binary and mesh where they meet
// (parallel/job/rendezvous.h), of data and seed once the groups are there (parallel/comm/agreement.h).
#pragma once

#include <map>
#include <string>
#include <vector>

namespace hyperion::parallel {

using Fingerprint =
    std::map<std::string, std::string>;  // "training.steps" -> "100", "binary" -> "0.1.0 3f2a..."

// What `own` has otherwise than `rank0`; "" for an entry that it does not have.
Fingerprint differing_entries(const Fingerprint& rank0, const Fingerprint& own);

// What `ranks` (rank, its entries that differ) have otherwise than rank 0, as a sentence.
struct DifferingRank {
  int rank = 0;
  Fingerprint entries;
};
std::string describe_differences(const Fingerprint& rank0, const std::vector<DifferingRank>& ranks);

}  // namespace hyperion::parallel
