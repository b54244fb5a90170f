// Checks that all ranks run the same job.
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/job/fingerprint.h"

namespace hyperion::parallel {

// Collective. If any entry differs, every rank throws Error(kUsage) with the keys and the values of all
// ranks. The ranks compare one XXH3 hash of all entries; only if the hashes differ, the entries are
// gathered on rank 0.
void require_agreement(Communicator& group, const Fingerprint& fingerprint);

}  // namespace hyperion::parallel
