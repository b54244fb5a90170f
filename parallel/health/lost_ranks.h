// Who was lost: the values that answer it.
#pragma once

#include <string>
#include <vector>

namespace hyperion::parallel {

// Ranks that this one does not count on any more.
struct LostRanks {
  std::vector<int> ranks;  // ascending
  bool failed = false;  // they have said that they fail; otherwise their processes have ended without a word
};

// What a rank finds out about the others once an operation has failed.
struct PostMortem {
  std::string text;       // appended to the error's message
  std::vector<int> lost;  // ranks that have ended or do not answer: for the record
  // Why the operation failed, where that is known ("rank 3 is lost"). It takes the place of the backend's
  // words: the connection that failed may be that of a rank which ended because of the lost one.
  std::string cause{};
};

}  // namespace hyperion::parallel
