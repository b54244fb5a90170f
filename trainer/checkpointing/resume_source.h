// Which checkpoint a job starts from: its own newest one that is whole, the one its configuration names, or
// none. Rank 0 looks and decides, all ranks open the same.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/collective.h"
#include "checkpoint/loader.h"
#include "checkpoint/names.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/config/load.h"

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
  std::vector<std::string> left_out;  // of those it holds, by checkpoint.components or exclude_from_loading
  std::map<std::string, Object> objects;  // of the components, by name here

  const Object* find(const std::string& name) const {
    const auto found = objects.find(name);
    return found == objects.end() ? nullptr : &found->second;
  }
};

// A job that has nothing left to do: its newest checkpoint holds the weights of its last step alone, from
// which no run could go on.
struct FinishedRun {
  std::filesystem::path path;
  int64_t step = 0;
  std::optional<int64_t> resumable_step{};  // of the newest checkpoint that a longer run would go on from
};

// Whether nothing but weights is in it, so that no run goes on from it: a last save of weights, or an export
// for Hugging Face. Reads the index of a complete checkpoint that another program wrote.
bool holds_weights_alone(const FoundCheckpoint& found);

class ResumeSource {
 public:
  // `folder`: of the job's own checkpoints. Collective. Throws Error(kBadData) when what the configuration
  // names is not there or cannot be used.
  ResumeSource(const JobConfig& config, const CheckpointFolder& folder,
               const std::filesystem::path& install_root, Coordinator& ranks);

  const std::optional<ChosenCheckpoint>& chosen() const { return chosen_; }
  // Instead of a chosen one.
  const std::optional<FinishedRun>& finished() const { return finished_; }

  // Runs `action`, which uses the chosen one, on every rank. True when it succeeded on all. False when the
  // checkpoint is damaged: chosen() is then the one before it, as checkpoint.on_corrupt says. Collective.
  // Throws the failure, the same on every rank, when there is none before it and when it is no damage.
  bool use(const std::function<void()>& action);

 private:
  void open_next();
  bool usable(const std::function<void()>& action);
  ChosenCheckpoint open(const Candidate& candidate) const;
  void settle_ema(ChosenCheckpoint& chosen) const;

  const JobConfig& config_;
  Coordinator& ranks_;
  std::vector<Candidate> candidates_;  // best first
  std::optional<FinishedRun> finished_{};
  size_t next_ = 0;
  std::optional<ChosenCheckpoint> chosen_;
};

// Throws Error(kUsage), with the ways out, when the weights that are loaded were trained with another
// tokenizer than this job's, unless checkpoint.allow_other_tokenizer says that they may be.
void require_same_tokenizer(const ResolvedConfig& resolved, const ChosenCheckpoint& chosen,
                            const TokenizerRecord& own);

}  // namespace hyperion
