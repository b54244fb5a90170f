// Provenance of a run: which configuration, command, versions and source commit produced the files in a dump
// folder.
#pragma once

#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace hyperion::trainer {

struct RunRecord {
  std::string resolved_toml;         // the complete configuration, as `hyperion config` prints it
  std::vector<std::string> command;  // argv
  std::string versions;              // the text of --version
  int world_size = 1;
  std::time_t start_time = std::time(nullptr);
};

// Writes <dump>/runs/YYYYMMDD-HHMMSS[-2, -3, ...]/{config.toml, run.txt} and returns that folder: no run
// overwrites the record of an earlier one, so the folder's name is the run's id. run.txt holds the command in
// a form a shell accepts, the working directory, host, start time, ranks, commit and versions. Call it on
// rank 0. Throws Error(kUsage) when the folder cannot be made.
std::filesystem::path write_run_record(const std::filesystem::path& dump_folder, const RunRecord& record);

// The git commit this program was configured from; "unknown" when the source was no git checkout.
std::string source_commit();

}  // namespace hyperion::trainer
