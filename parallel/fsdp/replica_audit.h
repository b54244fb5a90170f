// Do replicas hold equal bits? What several ranks hold in full is computed by each of them from equal
// numbers, so a difference is a bug: a sum of gradients that is missing, an operation whose result differs
// from rank to rank, or memory that is faulty.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"

namespace hyperion::parallel {

struct ReplicatedTensor {
  std::string name;
  at::Tensor tensor;                  // what this rank holds of it: contiguous, any dtype, may be empty
  std::vector<Communicator*> groups;  // over which it is replicated; those of one rank need no comparison
};

// Collective over every group that is named: all its ranks give the same tensors in the same order. One
// all-reduce of 16 bytes for each tensor and group; only where bits differ a second exchange finds the ranks.
// Throws Error(kBug) on every rank of that group, naming the tensors and the ranks that differ from the
// others.
//
// The bits of each tensor are hashed once: XXH3-64 on a CPU (6 GB/s per rank, measured on a busy machine;
// from memory that is not in a cache), hash_of_bits() on a GPU. Tensors that differ have equal hashes with a
// probability of 2^-64, if they were not made so on purpose. On a GPU the host waits for the device once for
// each group.
void audit_replicas(const std::vector<ReplicatedTensor>& tensors);

// A 64-bit hash of the tensor's bits, as a 0-dim int64 on its device: the sum over its words of a mixture
// (splitmix64) of word and place. Of integer operations alone, so equal bits give equal hashes on every
// device of a kind, in whatever order a device adds up. Nothing is copied to the host; needs 160 MiB at most.
at::Tensor hash_of_bits(const at::Tensor& tensor);

}  // namespace hyperion::parallel
