// Lists of ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace hyperion {

// Ranks in a message: "0 1 2 3"; "0..1023 (1024 ranks)"; "0 8 .. 1016 (128 ranks)" where they are as far from
// each other; "1 3 4 9 10 13 17 20 and 112 more". In ascending order.
std::string rank_list(std::span<const int> ranks);

// 0 to count - 1.
std::vector<int> first_ranks(int count);

}  // namespace hyperion
