// Writing a checkpoint folder: begin() and commit().
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/printable.h"
#include "checkpoint/storage/checkpoint_folder.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, std::string_view what, int error) {
  throw_save_failed("{}: {}: {}", printable(path), what, errno_text(error));
}

void sync_file(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return;
  if (!file || ::fsync(file.get()) != 0) fail(path, "cannot be flushed to disk", errno);
  durable_step("fsync", path);
}

bool is_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP;
}

// Renames `from` to `to`. What was at `to` is then at `from`, or, where the file system cannot exchange
// names, at `aside`. Returns the path of the old one, empty when there was none.
fs::path rename_into_place(const fs::path& from, const fs::path& to, const fs::path& aside) {
  struct stat info {};
  const bool exists = ::lstat(to.c_str(), &info) == 0;
  if (exists && !S_ISDIR(info.st_mode))
    throw_save_failed("{}: exists and is no folder, so that no checkpoint can have this name; move it away",
                      printable(to));
  int error = rename_entry(from, to, exists ? RenameMode::kExchange : RenameMode::kNoReplace);
  if (error == 0) return exists ? from : fs::path();
  if (!is_unsupported(error)) fail(to, "the checkpoint cannot get its name", error);
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

}  // namespace

fs::path CheckpointFolder::begin(const std::string& save_id, bool coordinator) const {
  const fs::path path = incoming(save_id);
  make_folders(folder_);
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    fail(path, "the folder of the save cannot be made", errno);
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) fail(path, "is no folder", ENOTDIR);
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
  } catch (const Error&) {  // not known to be on disk: it must not become visible
    undo_rename(incoming, to, old);
    throw;
  }
  failpoint("ckpt.after_commit");
  if (!old.empty()) discard(old);
}

}  // namespace hyperion::checkpoint
