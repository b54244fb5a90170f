#include "trainer/metrics/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "base/shell.h"

namespace hyperion::trainer {
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

}  // namespace

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
      fmt::format("command: {}\n"
                  "folder:  {}\n"
                  "host:    {}\n"
                  "start:   {:%Y-%m-%dT%H:%M:%S%z}\n"
                  "ranks:   {}\n"
                  "commit:  {}\n\n{}\n",
                  shell_command(record.command), std::filesystem::current_path(ignored).string(), host_name(),
                  start, record.world_size, source_commit(), record.versions));
  return folder;
}

}  // namespace hyperion::trainer
