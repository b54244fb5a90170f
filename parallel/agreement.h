// Do all ranks read the same data with the same seed? They compare fingerprints once the groups are there.
// (Configuration, binary and mesh have been compared before, in parallel/rendezvous.h.)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace hyperion::parallel {

using Fingerprint =
    std::map<std::string, std::string>;  // "training.steps" -> "100", "binary" -> "0.1.0 3f2a..."

// Collective. Throws Error(kUsage) on every rank when any entry differs: the keys, and which ranks differ
// from the majority. Ranks that agree exchange one XXH3 hash of all entries; only where it differs those of
// the entries go to rank 0.
void require_agreement(Communicator& group, const Fingerprint& fingerprint);

// The pure part: one line per rank's serialized hashes in, the message out; empty when all agree.
std::string serialize_hashes(const Fingerprint& fingerprint);
std::string describe_disagreement(const std::vector<std::string>& serialized,
                                  const std::vector<int>& global_ranks);

}  // namespace hyperion::parallel
