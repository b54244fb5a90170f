// ncclSend and ncclRecv of the simulated NCCL.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/simulated_gpu/nccl_communicator.h"

namespace simulated_gpu {

struct Message {
  bool sends = false;
  int peer = 0;
  const std::byte* from = nullptr;  // of a send
  std::byte* to = nullptr;          // of a receive
  size_t bytes = 0;
  std::string what{};  // "8 x Float": the same on both ranks
};

// The messages of one launch, all at the same time; those between two ranks in their order. A send ends when
// its peer has received it: NCCL promises no memory for what nobody takes yet. Ranks whose calls do not go
// together, which NCCL would not notice, are stopped with both calls.
void run_messages(const ncclComm& comm, const std::vector<Message>& messages);

}  // namespace simulated_gpu
