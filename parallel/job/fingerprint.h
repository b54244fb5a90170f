// A Fingerprint must be equal on all ranks of a job: configuration, binary and mesh at the rendezvous
// (parallel/job/rendezvous.h), data and seed once the groups exist (parallel/comm/agreement.h).
#pragma once

#include <map>
#include <string>
#include <vector>

namespace hyperion::parallel {

using Fingerprint =
    std::map<std::string, std::string>;  // "training.steps" -> "100", "binary" -> "0.1.0 3f2a..."

// The entries of `local` that differ from `rank0`; "" for an entry that `local` lacks.
Fingerprint differing_entries(const Fingerprint& rank0, const Fingerprint& local);

// A sentence about how `ranks` (rank, its differing entries) differ from rank 0.
struct DifferingRank {
  int rank = 0;
  Fingerprint entries;
};
std::string describe_differences(const Fingerprint& rank0, const std::vector<DifferingRank>& ranks);

}  // namespace hyperion::parallel
