#pragma once

#include <span>
#include <string>
#include <vector>

namespace hyperion {

// Formats ascending ranks for a message: "0 1 2 3"; "0..1023 (1024 ranks)"; "0 8 .. 1016 (128 ranks)" for a
// constant stride; "1 3 4 9 10 13 17 20 and 112 more".
std::string rank_list(std::span<const int> ranks);

// 0 to count - 1.
std::vector<int> first_ranks(int count);

}  // namespace hyperion
