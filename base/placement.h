// A Placement says how the ranks of a job hold a tensor: parallel/ computes it for parameters, checkpoint/
// saves and loads by it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"

namespace hyperion {

// The ranks over which a parameter is sharded.
enum class Domain : uint8_t {
  kDense,   // over tp, then by rows over fsdp
  kExpert,  // by experts over ep, then etp, then efsdp
};

// Without cuts the tensor is replicated.
struct Placement {
  std::vector<Cut> cuts;          // leave this rank's part, one box (base/box.h: box_of)
  int replicas = 1, replica = 0;  // number of ranks that hold that part; this rank's index among them
  int pp_rank = 0;                // pipeline rank that holds the tensor
  // True if this rank holds the tensor. If false, the placement describes a tensor without data, and the
  // indices of cuts and `replica` have no meaning.
  bool is_local = true;
  Domain domain = Domain::kDense;
  bool operator==(const Placement&) const = default;
};

}  // namespace hyperion
