// How the ranks of a job hold a tensor: parallel/ says it of parameters, checkpoint/ saves and loads by it.
#pragma once

#include <vector>

#include "base/box.h"

namespace hyperion {

// Without cuts each of the ranks has all of it.
struct Placement {
  std::vector<Cut> cuts;          // that leave this rank's part, one box (base/box.h: box_of)
  int replicas = 1, replica = 0;  // how many ranks hold that part; this rank's number among them
  int home = 0;                   // the pipeline stage whose ranks hold the tensor
  // Whether this rank is one of them. Else it describes the tensor without data, and the indices of the cuts
  // and `replica` mean nothing.
  bool here = true;
  bool operator==(const Placement&) const = default;
};

}  // namespace hyperion
