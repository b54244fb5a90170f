// Which checkpoint a job starts from: its own newest one that is whole, the one its configuration names, or
// none. Rank 0 looks and decides, all ranks open the same.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/coordinator.h"
#include "checkpoint/loader.h"
#include "checkpoint/names.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "trainer/config/job_config.h"
#include "trainer/resume_policy.h"

namespace hyperion {

struct Candidate {
  std::filesystem::path path;
  LoadSource source = LoadSource::kOwn;
  int64_t step = 0;           // of its folder's name; 0 for an initial load
  bool hugging_face = false;  // names are Hugging Face's
};

// The checkpoint a job loads.
struct ChosenCheckpoint {
  Candidate candidate;
  OpenCheckpoint checkpoint;
  std::map<std::string, std::string> names;  // name here (or Hugging Face's) -> key in the checkpoint
  std::set<std::string> components;          // to be loaded
  std::map<std::string, Object> objects;     // of the components, by name here

  const Object* find(const std::string& name) const {
    const auto found = objects.find(name);
    return found == objects.end() ? nullptr : &found->second;
  }
};

class ResumeSource {
 public:
  // `folder`: of the job's own checkpoints. Collective. Throws Error(kBadData) when what the configuration
  // names is not there or cannot be used.
  ResumeSource(const JobConfig& config, const CheckpointFolder& folder,
               const std::filesystem::path& install_root, Coordinator& ranks);

  const std::optional<ChosenCheckpoint>& chosen() const { return chosen_; }

  // Loading the chosen one failed on some rank (`why`: this rank's error, empty where it did not): takes the
  // one before it, as checkpoint.on_corrupt says. Collective; all ranks call it when any failed. Throws
  // Error(kBadData) when there is none.
  void give_up(const std::string& why);

 private:
  std::vector<Candidate> candidates(const CheckpointFolder& folder,
                                    const std::filesystem::path& install_root) const;
  void open_next(std::string why);
  ChosenCheckpoint open(const Candidate& candidate) const;
  void settle_ema(ChosenCheckpoint& chosen) const;

  const JobConfig& config_;
  Coordinator& ranks_;
  std::vector<Candidate> candidates_;  // best first
  size_t next_ = 0;
  std::optional<ChosenCheckpoint> chosen_;
};

}  // namespace hyperion
