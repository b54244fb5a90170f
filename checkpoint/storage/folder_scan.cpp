// What is in the folder, without changing it.
#include <algorithm>
#include <charconv>
#include <set>
#include <system_error>

#include <sys/stat.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/printable.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/storage/index_files.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

bool is_file(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool has_safetensors(const fs::path& folder) {
  return is_file(folder / "model.safetensors.index.json") ||
         std::ranges::any_of(entries_of(folder), [](const fs::path& entry) {
           return entry.extension() == ".safetensors" && is_file(entry);
         });
}

}  // namespace

std::optional<int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return {};
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool exact =
      error == std::errc() && end == digits.data() + digits.size() && digits == std::to_string(step);
  return exact && step >= 0 ? std::optional(step) : std::nullopt;
}

StepFolder cheap_check(const fs::path& folder, int64_t step) {
  StepFolder found;
  found.step = step;
  found.path = folder;
  try {
    const std::vector<std::string> index = find_index_files(folder);
    found.kind = index.empty() ? CheckpointKind::kSafetensors : CheckpointKind::kForeign;
    if (index.empty() && !has_safetensors(folder))
      throw_data("{}: has no .metadata and no *.safetensors: it is no checkpoint", printable(folder));
    for (const std::string& name : index) regular_file_exists(folder / name);  // else it says what is there
    if (!name_exists(folder / kManifestFile)) return found;
    found.kind = CheckpointKind::kDamaged;
    found.manifest = read_manifest(folder);
    found.kind = found.manifest->kind;
    if (found.manifest->step != step)
      throw_data("{}: its manifest is of step {}: the folder was renamed or its files were swapped",
                 printable(folder), found.manifest->step);
    check_sizes(folder, *found.manifest);
  } catch (const PermissionDenied& error) {
    found.kind = CheckpointKind::kUnreadable;
    found.unreadable = true;
    found.why_not = error.what();
  } catch (const Error& error) {
    found.why_not = error.what();
  }
  return found;
}

std::vector<std::string> extra_files(const fs::path& folder, const Manifest& manifest) {
  std::set<std::string> known = {kManifestFile};
  for (const FileRecord& record : manifest.files) known.insert(record.name);
  std::vector<std::string> extra;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!known.contains(it->path().filename().native())) extra.push_back(printable(it->path().filename()));
  std::ranges::sort(extra);
  return extra;
}

bool StepFolder::damaged() const {
  return !complete() && !unreadable && (name_exists(path / kManifestFile) || has_index_file(path));
}

std::vector<StepFolder> CheckpointFolder::scan() const {
  std::vector<StepFolder> found;
  std::error_code error;
  fs::directory_iterator it(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of_name(it->path().filename().native());
    struct stat info {};
    if (!step || ::lstat(it->path().c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    found.push_back(cheap_check(it->path(), *step));
  }
  if (error) throw_data("{}: cannot be listed: {}", printable(folder_), errno_text(error.value()));
  std::ranges::sort(found, {}, &StepFolder::step);
  return found;
}

void CheckpointFolder::require_free_names(int64_t first, int64_t last) const {
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of_name(it->path().filename().native());
    struct stat info {};
    if (!step || *step < first || *step > last || ::lstat(it->path().c_str(), &info) != 0 ||
        S_ISDIR(info.st_mode))
      continue;
    throw_pre_checkpoint(
        "[pre-checkpoint] {}: is {}, so that the checkpoint of step {} could not have this "
        "name; move it away",
        printable(it->path()), S_ISLNK(info.st_mode) ? "a link" : "no folder", *step);
  }
}

std::vector<int64_t> steps_to_purge(const std::vector<StepFolder>& found, const PurgeRule& rule) {
  std::vector<const StepFolder*> ours;  // the newest first
  for (const StepFolder& one : found)
    if (one.complete() && one.manifest && one.kind != CheckpointKind::kSeed) ours.push_back(&one);
  std::ranges::sort(ours, [&](const StepFolder* a, const StepFolder* b) {
    return std::pair(a->step == rule.newest, a->step) > std::pair(b->step == rule.newest, b->step);
  });
  const auto newest_restorable = std::ranges::find_if(ours, [](const auto* one) {
    return one->kind == CheckpointKind::kFull || one->kind == CheckpointKind::kPreCheckpoint;
  });
  int64_t newest_full = -1;
  for (const StepFolder* one : ours)
    if (one->kind == CheckpointKind::kFull) newest_full = std::max(newest_full, one->step);

  std::vector<int64_t> steps;
  int64_t counted = 0;
  for (auto one = ours.begin(); one != ours.end(); ++one) {
    const StepFolder& candidate = **one;
    const bool kept = candidate.kind == CheckpointKind::kPreCheckpoint
                          ? candidate.step >= newest_full
                          : rule.keep <= 0 || counted++ < rule.keep;
    if (kept || one == newest_restorable || candidate.step == rule.newest) continue;
    steps.push_back(candidate.step);
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace hyperion::checkpoint
