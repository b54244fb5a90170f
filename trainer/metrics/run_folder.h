// Provenance of a run: which configuration, command, devices, versions and commits produced the files in a
// dump folder.
#pragma once

#include <chrono>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace hyperion::metrics {

struct RunRecord {
  std::string resolved_toml;         // the complete configuration, as `hyperion config` prints it
  std::vector<std::string> command;  // argv
  std::string config_file;           // "" without one
  std::string devices;               // "8 x NVIDIA H100 80GB HBM3"
  std::string versions;              // the text of --version
  int world_size = 1;
  std::time_t start_time = std::time(nullptr);
};

// Writes <dump>/runs/YYYYMMDD-HHMMSS[-2, -3, ...]/{config.toml, run.txt} and returns that folder: no run
// overwrites the record of an earlier one, so the folder's name is the run's id. run.txt holds the command in
// a form a shell accepts, the working directory, host, start time, ranks, devices, commit, what git says of
// the configuration's file, and versions. Call it on rank 0. Throws Error(kUsage) when the folder cannot be
// made.
std::filesystem::path write_run_record(const std::filesystem::path& dump_folder, const RunRecord& record);

// "as in git commit 67d5c09..." or "changed since ..." or "not in ..." (not added, or ignored): the file and
// the HEAD of the repository that it is in, whatever GIT_DIR and its like say. "unknown to git" without git
// or repository, where git refuses a repository of another owner (safe.directory), or takes longer than
// `limit`.
std::string git_state(const std::filesystem::path& file,
                      std::chrono::seconds limit = std::chrono::seconds(5));

// The git commit this program was configured from; "unknown" when the source was no git checkout.
std::string source_commit();

}  // namespace hyperion::metrics
