#include "checkpoint/tools/folders.h"

#include <system_error>

#include <sys/stat.h>

#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "base/printable.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

// The checkpoint folder of a job with default settings.
fs::path folder_in(const fs::path& dump_folder) {
  return dump_folder / "checkpoint";
}

// A checkpoint of the folder to name as an example: the newest that is complete, else the newest; "" for
// none.
fs::path example_in(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return {};
  fs::path example;
  bool complete = false;
  for (const StepFolder& one : CheckpointFolder(folder).scan()) {
    if (complete && !one.complete()) continue;
    example = one.path;
    complete = one.complete();
  }
  return example;
}

}  // namespace

bool is_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!path_exists(path, ExitCode::kUsage))
    throw_config("{}: does not exist: give a checkpoint's folder", printable(path));
  if (!fs::is_directory(path, error)) {
    if (path.extension() == ".safetensors") return true;
    throw_config("{}: is neither a folder nor a .safetensors file", printable(path));
  }
  const auto has = [&](const char* name) { return fs::exists(fs::symlink_status(path / name, error)); };
  if (has(".metadata") || has(kManifestFile) || step_of_name((path / "").parent_path().filename().native()))
    return true;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors" || it->path().extension() == ".distcp") return true;
  return false;
}

std::string no_checkpoints(const fs::path& folder) {
  const fs::path inside = folder_in(folder);
  const std::string nearer = example_in(inside).empty() ? "" : printable(inside);
  return fmt::format("{}: no checkpoints{}", printable(folder), did_you_mean(nearer));
}

void require_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) return;
  if (const fs::path example = example_in(path); !example.empty())
    throw_config("{}: is a folder of checkpoints: give one, such as {}", printable(path), printable(example));
  const fs::path nearer = example_in(folder_in(path));
  throw_config("{}: is no checkpoint: it has no .metadata and no *.safetensors{}", printable(path),
               did_you_mean(nearer.empty() ? "" : printable(nearer)));
}

FolderSize folder_size(const fs::path& path) {
  FolderSize size;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return {1, fs::file_size(path, error)};
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    ++size.files;
    size.bytes += it->file_size(ignored);
  }
  return size;
}

int64_t time_of(const StepFolder& checkpoint) {
  if (checkpoint.manifest) return checkpoint.manifest->unix_time;
  struct stat info {};
  if (::stat((checkpoint.path / ".metadata").c_str(), &info) != 0) ::stat(checkpoint.path.c_str(), &info);
  return info.st_mtim.tv_sec;
}

std::string kind_label(CheckpointKind kind) {
  return kind == CheckpointKind::kForeign ? "DCP, no manifest" : std::string(text_of(kind));
}

}  // namespace hyperion::checkpoint
