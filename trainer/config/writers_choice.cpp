#include "trainer/config/writers_choice.h"

#include <fmt/format.h>

#include "base/counted.h"

namespace hyperion::config {

ChosenWriters choose_writers(WritersChoice asked, int64_t ranks, int64_t replicas) {
  using checkpoint::Writers;
  Writers writers = asked == WritersChoice::kOneReplica ? Writers::kOneReplica : Writers::kAll;
  std::string why;
  if (asked == WritersChoice::kAuto) {
    const std::string limit = counted(kMaxRanksThatAllWrite, "rank");
    if (ranks <= kMaxRanksThatAllWrite) {
      why = ": at most " + limit;
    } else if (replicas == 1) {
      why = ": without replicas each rank has a shard of its own";
    } else {
      writers = Writers::kOneReplica;
      why = fmt::format(": more than {}, and {}", limit, counted(replicas, "replica"));
    }
  }
  const std::string who =
      writers == Writers::kAll
          ? (ranks == 1 ? "" : "all ") + counted(ranks, "rank")
          : fmt::format("one replica, {} of {}", format_count(static_cast<uint64_t>(ranks / replicas)),
                        counted(ranks, "rank"));
  return {writers, fmt::format("{} (checkpoint.writers = \"{}\"{})", who, text_of(asked), why)};
}

}  // namespace hyperion::config
