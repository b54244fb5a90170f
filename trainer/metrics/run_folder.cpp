#include "trainer/metrics/run_folder.h"

#include <cstdio>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/shell.h"

namespace hyperion::metrics {
namespace {

// create_directory() says whether it was the one that made the folder, so two runs never get the same one.
std::filesystem::path new_folder(const std::filesystem::path& parent, const std::string& stamp) {
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  for (int number = 1; !error; ++number) {
    const auto folder = parent / (number == 1 ? stamp : fmt::format("{}-{}", stamp, number));
    if (std::filesystem::create_directory(folder, error)) return folder;
  }
  throw_save_failed("{}: cannot create the folder for the run's record: {}", parent.string(),
                    error.message());
}

// A git hook's variables name the hook's repository, whatever git's -C is. What is preloaded is for the job:
// a library that loads libtorch would take half a second of each of these processes.
constexpr const char* kOutsideHooks =
    "unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY LD_PRELOAD; "
    "GIT_TERMINAL_PROMPT=0 ";

}  // namespace

std::string git_state(const std::filesystem::path& file, std::chrono::seconds limit) {
  std::error_code error;
  const auto path = std::filesystem::canonical(file, error);  // a link is where its file is
  const std::string command =
      kOutsideHooks +
      shell_command({"timeout", "-k", "1", std::to_string(limit.count()), "git", "--no-optional-locks",
                     "--literal-pathspecs", "-c", "core.fsmonitor=false", "-C", path.parent_path().string(),
                     "status", "--porcelain=2", "--branch", "--untracked-files=all", "--ignored", "--",
                     path.filename().string()});
  std::FILE* pipe = error ? nullptr : ::popen((command + " 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return "unknown to git";
  std::string answer(64 * 1024, '\0');
  answer.resize(std::fread(answer.data(), 1, answer.size(), pipe));
  const bool ok = ::pclose(pipe) == 0;
  // "# branch.oid COMMIT", more "# " lines, and a line for a file that is not as in the commit
  const std::string_view head = "# branch.oid ";
  if (!ok || !answer.starts_with(head)) return "unknown to git";
  const char kind = answer[answer.rfind('\n', answer.size() - 2) + 1];
  return fmt::format("{} git commit {}",
                     kind == '#'                  ? "as in"
                     : kind == '?' || kind == '!' ? "not in"
                                                  : "changed since",
                     answer.substr(head.size(), answer.find('\n') - head.size()));
}

std::string source_commit() {
  return HYPERION_COMMIT;
}

std::filesystem::path write_run_record(const std::filesystem::path& dump_folder, const RunRecord& record) {
  const std::tm start = fmt::localtime(record.start_time);
  const auto folder = new_folder(dump_folder / "runs", fmt::format("{:%Y%m%d-%H%M%S}", start));
  std::error_code ignored;
  write_file_atomic(folder / "config.toml", record.resolved_toml);
  write_file_atomic(
      folder / "run.txt",
      fmt::format(
          "command: {}\n"
          "folder:  {}\n"
          "host:    {}\n"
          "start:   {:%Y-%m-%dT%H:%M:%S%z}\n"
          "ranks:   {}\n"
          "devices: {}\n"
          "commit:  {}\n"
          "config:  {}\n\n{}\n",
          shell_command(record.command), std::filesystem::current_path(ignored).string(), host_name(), start,
          record.world_size, record.devices, source_commit(),
          record.config_file.empty() ? "no file" : record.config_file + ", " + git_state(record.config_file),
          record.versions));
  return folder;
}

}  // namespace hyperion::metrics
