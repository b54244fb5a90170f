#include "data/shuffle_plan.h"

#include <algorithm>

namespace hyperion::data {

uint64_t scaled(uint64_t value, uint64_t numerator, uint64_t denominator) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(Wide{value} * numerator / denominator);
}

std::vector<std::vector<CorpusPart>> plan_slots(std::span<const PlannedFile> files, uint64_t window) {
  uint64_t total = 0;
  for (const PlannedFile& file : files) total += file.bytes;
  if (std::ranges::any_of(files, &PlannedFile::sequential)) window = std::min(window, kMaxSequentialSlots);
  std::vector<std::vector<CorpusPart>> slots(window);
  uint64_t before = 0;  // bytes of the parts before this one
  for (uint32_t file = 0; file < files.size(); ++file) {
    const uint64_t bytes = files[file].bytes;
    const uint64_t most = files[file].divisible ? std::max<uint64_t>(bytes / kMinPartBytes, 1) : 1;
    const auto parts = static_cast<uint32_t>(std::clamp<uint64_t>(scaled(window, bytes, total), 1, most));
    for (uint32_t part = 0; part < parts; ++part) {
      const uint64_t part_bytes = bytes * (part + 1) / parts - bytes * part / parts;
      const uint64_t slot = scaled(window, before + part_bytes / 2, total);
      slots[std::min(slot, window - 1)].push_back({file, part, parts, part_bytes});
      before += part_bytes;
    }
  }
  std::erase_if(slots, [](const std::vector<CorpusPart>& slot) { return slot.empty(); });
  return slots;
}

}  // namespace hyperion::data
