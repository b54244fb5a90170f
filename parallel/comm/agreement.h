// Are all ranks of the same job?
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/job/fingerprint.h"

namespace hyperion::parallel {

// Collective. Throws Error(kUsage) on every rank when any entry differs: the keys, with the value of every
// rank. Ranks that agree exchange one XXH3 hash of all entries; only where it differs those go to rank 0.
void require_agreement(Communicator& group, const Fingerprint& fingerprint);

}  // namespace hyperion::parallel
