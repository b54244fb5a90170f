#include "checkpoint/storage/checkpoint_folder.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <set>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/text.h"
#include "checkpoint/storage/index_files.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

// Type and permissions of a name, without following links; 0 if it does not exist.
mode_t mode_of(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_mode : 0;
}

bool has_safetensors(const fs::path& folder) {
  return S_ISREG(mode_of(folder / "model.safetensors.index.json")) ||
         std::ranges::any_of(list_folder(folder), [](const fs::path& entry) {
           return entry.extension() == ".safetensors" && S_ISREG(mode_of(entry));
         });
}

[[noreturn]] void fail(const fs::path& path, std::string_view what, int error) {
  throw_save_failed("{}: {}: {}", printable(path), what, errno_text(error));
}

void sync_file(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return;
  if (!file || ::fsync(file.get()) != 0) fail(path, "cannot be flushed to disk", errno);
  durable_step("fsync", path);
}

// Renames `from` to `to`. A previous `to` is then at `from`, or at `aside` if the file system cannot
// exchange names. Returns its path, empty if there was none.
fs::path rename_into_place(const fs::path& from, const fs::path& to, const fs::path& aside) {
  const mode_t mode = mode_of(to);
  const bool exists = mode != 0;
  if (exists && !S_ISDIR(mode))
    throw_save_failed("{}: exists and is no folder, so that no checkpoint can have this name; move it away",
                      printable(to));
  int error = rename_entry(from, to, exists ? RenameMode::kExchange : RenameMode::kNoReplace);
  if (error == 0) return exists ? from : fs::path();
  if (error != EINVAL && error != ENOSYS && error != ENOTSUP)
    fail(to, "the checkpoint cannot get its name", error);
  if (exists) {
    error = rename_entry(to, aside, RenameMode::kReplace);
    if (error != 0) fail(to, "the older checkpoint cannot be moved aside", error);
  }
  error = rename_entry(from, to, RenameMode::kReplace);
  if (error != 0) {
    if (exists) rename_entry(aside, to, RenameMode::kReplace);
    fail(to, "the checkpoint cannot get its name", error);
  }
  return exists ? aside : fs::path();
}

// Undoes rename_into_place(), as far as possible.
void undo_rename(const fs::path& from, const fs::path& to, const fs::path& old) {
  if (old == from && rename_entry(from, to, RenameMode::kExchange) == 0) return;
  rename_entry(to, from, RenameMode::kReplace);
  if (!old.empty() && old != from) rename_entry(old, to, RenameMode::kReplace);
}

constexpr std::string_view kIncoming = ".incoming-", kTrash = ".trash-";

// Removes a folder with a temporary name and its content.
void remove_tree(const fs::path& folder, bool purging) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  for (size_t i = 0; i < entries.size() && !error; ++i) {
    if (purging && i == entries.size() / 2) failpoint("purge.mid", folder.native());
    fs::remove_all(entries[i], error);
  }
  if (!error) fs::remove(folder, error);
  if (error)
    log_warning("{}: cannot be removed: {}; it takes up space until the next start", printable(folder),
                errno_text(error.value()));
  else
    durable_step("unlink", folder);
}

template <typename Removal>
void warn_on_failure(const fs::path& path, const Removal& remove) noexcept {
  try {
    remove();
  } catch (const std::exception& error) {
    log_warning("{}: cannot be removed: {}", printable(path), error.what());
  }
}

// Unique in this process, so that two removals never collide.
fs::path new_trash(const fs::path& folder) {
  static std::atomic<int> count{0};
  fs::path path;
  do path = folder / fmt::format("{}{}-{}", kTrash, ::getpid(), count++);
  while (name_exists(path));
  return path;
}

// The name that `path` had before commit() moved it aside for a successor that was never committed; empty
// for any other `path`.
fs::path name_to_restore(const fs::path& path) {
  const std::string name = path.filename().native();
  if (!name.starts_with(kReplacedPrefix)) return {};
  const std::string step = name.substr(kReplacedPrefix.size());
  const std::string owner = "step-" + step.substr(0, step.find('-'));
  const fs::path to = path.parent_path() / owner;
  return step_of_name(owner) && !name_exists(to) ? to : fs::path();
}

}  // namespace

// --- listing ---

std::optional<int64_t> step_of_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return {};
  const std::string_view digits = name.substr(kPrefix.size());
  const auto step = parse_number<int64_t>(digits);
  return step && *step >= 0 && digits == std::to_string(*step) ? step : std::nullopt;
}

StepFolder cheap_check(const fs::path& folder, int64_t step) {
  StepFolder found{.step = step, .path = folder};
  try {
    const std::vector<std::string> index = find_index_files(folder);
    found.kind = index.empty() ? CheckpointKind::kSafetensors : CheckpointKind::kForeign;
    if (index.empty() && !has_safetensors(folder))
      throw_data("{}: has no .metadata and no *.safetensors: it is no checkpoint", printable(folder));
    for (const std::string& name : index) regular_file_exists(folder / name);  // throws naming what it is
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
  return !complete() && !unreadable() && (name_exists(path / kManifestFile) || has_index_file(path));
}

std::vector<StepFolder> CheckpointFolder::scan() const {
  std::vector<StepFolder> found;
  std::error_code error;
  fs::directory_iterator it(folder_, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of_name(it->path().filename().native());
    if (step && S_ISDIR(mode_of(it->path()))) found.push_back(cheap_check(it->path(), *step));
  }
  if (error) throw_data("{}: cannot be listed: {}", printable(folder_), errno_text(error.value()));
  std::ranges::sort(found, {}, &StepFolder::step);
  return found;
}

void CheckpointFolder::require_free_names(int64_t first, int64_t last) const {
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::optional<int64_t> step = step_of_name(it->path().filename().native());
    const mode_t mode = mode_of(it->path());
    if (!step || *step < first || *step > last || mode == 0 || S_ISDIR(mode)) continue;
    throw_pre_checkpoint(
        "[pre-checkpoint] {}: is {}, so that the checkpoint of step {} could not have this "
        "name; move it away",
        printable(it->path()), S_ISLNK(mode) ? "a link" : "no folder", *step);
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

// --- creating a checkpoint ---

fs::path CheckpointFolder::step_path(int64_t step) const {
  return folder_ / fmt::format("step-{}", step);
}

fs::path CheckpointFolder::incoming(const std::string& save_id) const {
  // Other programs treat every name with step-<digits> in it as a checkpoint.
  const std::string name = std::string(kIncoming) + save_id;
  if (!is_plain_name(name) || save_id.empty() || name.find("step-") != name.npos)
    throw_bug("\"{}\" cannot be the id of a save", save_id);
  return folder_ / name;
}

fs::path CheckpointFolder::begin(const std::string& save_id, bool coordinator) const {
  const fs::path path = incoming(save_id);
  make_folders(folder_);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    fail(path, "the folder of the save cannot be made", errno);
  if (!S_ISDIR(mode_of(path))) fail(path, "is no folder", ENOTDIR);
  durable_step("mkdir", path);
  if (coordinator) sync_folder(folder_);
  return path;
}

void CheckpointFolder::commit(const fs::path& incoming, int64_t step) const {
  failpoint("ckpt.before_commit");
  sync_file(incoming / ".metadata");
  sync_file(incoming / kManifestFile);
  sync_folder(incoming);
  const fs::path to = step_path(step);
  // A name that no other rename of this save uses, and that does not look like a checkpoint.
  const fs::path aside =
      folder_ / fmt::format("{}{}-{}", kReplacedPrefix, step, incoming.filename().native());
  const fs::path old = rename_into_place(incoming, to, aside);
  try {
    sync_folder(folder_);
  } catch (const Error&) {  // possibly not on disk: it must not become visible
    undo_rename(incoming, to, old);
    throw;
  }
  failpoint("ckpt.after_commit");
  if (!old.empty()) discard(old);
}

// --- removing ---

void CheckpointFolder::remove_checkpoint(const fs::path& checkpoint, bool purging) const {
  const fs::path trash = new_trash(folder_);
  if (const int error = rename_entry(checkpoint, trash, RenameMode::kReplace); error != 0) {
    log_warning("{}: cannot be removed: {}", printable(checkpoint), errno_text(error));
    return;
  }
  sync_folder(folder_);  // the name disappears before the first file does
  remove_tree(trash, purging);
}

void CheckpointFolder::abandon(const fs::path& incoming) const noexcept {
  warn_on_failure(incoming, [&] {
    if (name_exists(incoming)) remove_tree(incoming, /*purging=*/false);
  });
}

void CheckpointFolder::discard(const fs::path& checkpoint) const noexcept {
  warn_on_failure(checkpoint, [&] { remove_checkpoint(checkpoint, /*purging=*/false); });
}

std::vector<int64_t> CheckpointFolder::purge(const PurgeRule& rule) const {
  failpoint("purge.before");
  std::vector<int64_t> steps;
  try {
    steps = steps_to_purge(scan(), rule);
    for (const int64_t step : steps) remove_checkpoint(step_path(step), /*purging=*/true);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) throw;
    log_warning("old checkpoints cannot be removed: {}", error.what());
  }
  failpoint("purge.after");
  return steps;
}

int CheckpointFolder::clean_leftovers(const FolderLock& lock) const {
  if (lock.folder() != folder_)
    throw_bug("the lock of {} does not cover {}", printable(lock.folder()), printable(folder_));
  int count = 0;
  std::error_code error;
  std::vector<fs::path> stale;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    if ((name.starts_with(kIncoming) || name.starts_with(kTrash)) && S_ISDIR(mode_of(it->path())))
      stale.push_back(it->path());
  }
  for (const fs::path& path : stale) {
    if (const fs::path name = name_to_restore(path); !name.empty()) {
      // The lock prevents others from creating it in between; not all file systems support kNoReplace.
      if (const int failure = rename_entry(path, name, RenameMode::kReplace); failure != 0) {
        log_warning("{}: cannot be renamed back to {}: {}", printable(path), name.filename().native(),
                    errno_text(failure));
        continue;
      }
      sync_folder(folder_);
      log_warning("{}: was moved aside by a save that did not finish; it was renamed back", printable(name));
      continue;
    }
    log_info("{}: left by a run that ended in the middle; removed", printable(path));
    remove_tree(path, /*purging=*/false);
    ++count;
  }
  return count;
}

}  // namespace hyperion::checkpoint
