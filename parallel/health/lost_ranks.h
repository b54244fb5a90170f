// Values that say which ranks were lost.
#pragma once

#include <string>
#include <vector>

namespace hyperion::parallel {

// Ranks that this rank considers lost.
struct LostRanks {
  std::vector<int> ranks;  // ascending
  bool failed = false;     // they reported their failure; else their processes ended without a message
};

// The result of searching for lost ranks after an operation has failed.
struct PostMortem {
  std::string text;       // appended to the error's message
  std::vector<int> lost;  // ranks that have ended or do not answer, for the record
  // Why the operation failed, if known ("rank 3 is lost"). It replaces the backend's message: the
  // connection that failed may belong to a rank that ended because of the lost one.
  std::string cause{};
};

}  // namespace hyperion::parallel
