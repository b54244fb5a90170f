// Records the provenance of a run: the configuration, command, devices, versions and commits that produced
// the files of a dump folder.
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

// Writes <dump>/runs/YYYYMMDD-HHMMSS[-2, -3, ...]/{config.toml, run.txt} and returns that folder. No run
// overwrites the record of an earlier one, so the folder's name is the run's id. run.txt holds the command
// quoted for a shell, the working directory, host, start time, ranks, devices, commit, the git state of the
// configuration's file, and versions. Call it on rank 0. Throws Error(kUsage) if the folder cannot be
// created.
std::filesystem::path write_run_record(const std::filesystem::path& dump_folder, const RunRecord& record);

// Compares the file with HEAD of its repository, regardless of GIT_DIR and similar variables. Returns "as in
// git commit 67d5c09...", "changed since ..." or "not in ..." (not added, or ignored). Returns "unknown to
// git" without git or a repository, if git refuses the repository of another owner (safe.directory), or after
// `limit`.
std::string git_state(const std::filesystem::path& file,
                      std::chrono::seconds limit = std::chrono::seconds(5));

// Returns the git commit that this program was built from; "unknown" if the source was no git checkout.
std::string source_commit();

}  // namespace hyperion::metrics
