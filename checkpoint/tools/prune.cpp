// ckpt prune
#include <algorithm>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

// Why the rule keeps a checkpoint; `newer`: how many newer ones count.
std::string why_it_stays(const StepFolder& one, int64_t keep, int64_t newer) {
  if (one.unreadable()) return "cannot be read: never removed";
  if (!one.complete()) return "is not complete: never removed by itself";
  if (!one.manifest) return "is of another program: never removed";
  if (one.kind == CheckpointKind::kSeed) return "is a seed";
  if (one.kind == CheckpointKind::kPreCheckpoint) return "no newer full checkpoint is there";
  if (newer < keep) return newer == 0 ? "newest" : fmt::format("among the newest {}", keep);
  return "newest that holds everything";
}

bool counts_for_keep(const StepFolder& one) {
  return one.complete() && one.manifest && one.kind != CheckpointKind::kSeed &&
         one.kind != CheckpointKind::kPreCheckpoint;
}

}  // namespace

ExitCode prune_checkpoints(const PruneOptions& options, std::FILE* out) {
  if (options.keep < 1) throw_config("prune: --keep is {}, expected a whole number above 0", options.keep);
  if (is_checkpoint(options.path))
    throw_config("{}: is one checkpoint: give the folder that holds a job's step-N folders",
                 options.path.string());
  // A run that writes here removes old checkpoints itself.
  std::optional<FolderLock> lock;
  if (!options.dry_run) lock.emplace(options.path);
  const CheckpointFolder folder(options.path);
  const PurgeRule rule{.keep = options.keep};
  const std::vector<StepFolder> found = folder.scan();
  std::vector<FolderSize> sizes;
  for (const StepFolder& one : found) sizes.push_back(folder_size(one.path));
  const std::vector<int64_t> steps = options.dry_run ? steps_to_purge(found, rule) : folder.purge(rule);

  AlignedTable table({">step", "kind", ">size", "age", "", "why"});
  const int64_t now = std::time(nullptr);
  uint64_t freed = 0;
  size_t stuck = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const StepFolder& one = found[i];
    const bool removed = std::ranges::binary_search(steps, one.step);
    const bool still_there = removed && !options.dry_run && name_exists(one.path);
    const int64_t newer =
        std::count_if(found.begin() + static_cast<ptrdiff_t>(i) + 1, found.end(), counts_for_keep);
    if (still_there) ++stuck;
    if (removed && !still_there) freed += sizes[i].bytes;
    table.add({fmt::format("{}", one.step), kind_label(one.kind), format_bytes(sizes[i].bytes),
               format_age(now - time_of(one)),
               still_there       ? "STAYS"
               : !removed        ? "stays"
               : options.dry_run ? "would go"
                                 : "removed",
               still_there ? "cannot be removed"
               : removed   ? "older than those kept"
                           : why_it_stays(one, options.keep, newer)});
  }
  if (table.empty())
    fmt::print(out, "{}\n", no_checkpoints(options.path));
  else
    fmt::print(out, "{}\n", table.text_for(out));
  fmt::print(out, "{} {}, {}\n", counted(steps.size() - stuck, "checkpoint"),
             options.dry_run ? "would be removed" : "removed", format_bytes(freed));
  return stuck == 0 ? ExitCode::kOk : ExitCode::kSaveFailed;
}

}  // namespace hyperion::checkpoint
