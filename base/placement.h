// How the ranks of a job hold a tensor: parallel/ says it of parameters, checkpoint/ saves and loads by it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"

namespace hyperion {

// Over which ranks a parameter is divided.
enum class Domain : uint8_t {
  kDense,   // over those of tensor parallelism, then by rows over fsdp
  kExpert,  // by experts over ep, then over efsdp
};

// Without cuts each of the ranks has all of it.
struct Placement {
  std::vector<Cut> cuts;          // that leave this rank's part, one box (base/box.h: box_of)
  int replicas = 1, replica = 0;  // how many ranks hold that part; this rank's number among them
  int home = 0;                   // the pipeline stage whose ranks hold the tensor
  // Whether this rank is one of them. Else it describes the tensor without data, and the indices of the cuts
  // and `replica` mean nothing.
  bool here = true;
  Domain domain = Domain::kDense;
  bool operator==(const Placement&) const = default;
};

}  // namespace hyperion
