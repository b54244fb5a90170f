// The audit checks that replicas hold equal bits. Ranks compute a replicated tensor from equal numbers, so a
// difference is a bug: a missing sum of gradients, an operation whose result differs from rank to rank, or
// faulty memory.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"

namespace hyperion::parallel {

struct ReplicatedTensor {
  std::string name;
  at::Tensor tensor;                  // this rank's shard: contiguous, any dtype, may be empty
  std::vector<Communicator*> groups;  // it is replicated over each; groups of one rank are not compared
};

// Collective over every group in `tensors`: all its ranks give the same tensors in the same order. The audit
// costs one all-reduce of 16 bytes for each tensor and group. If bits differ, a second exchange finds the
// ranks, and every rank of the group throws Error(kBug) with the tensors and the ranks that differ.
//
// Each tensor is hashed once: by XXH3-64 on a CPU (6 GB/s per rank, measured on a busy machine with data that
// is not in a cache), by hash_of_bits() on a GPU. Different tensors have equal hashes with a probability of
// 2^-64, unless they were made so on purpose. On a GPU the host waits for the device once for each group.
void audit_replicas(const std::vector<ReplicatedTensor>& tensors);

// Returns a 64-bit hash of the tensor's bits, as a 0-dim int64 on its device: the sum over its words of
// splitmix64 of word and place. It uses integer operations only, so equal bits give equal hashes in whatever
// order a device sums. It copies nothing to the host and needs 160 MiB at most.
at::Tensor hash_of_bits(const at::Tensor& tensor);

}  // namespace hyperion::parallel
