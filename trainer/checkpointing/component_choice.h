// Chooses the parts of the state that are read from a checkpoint: docs/resume.md, "Which parts are read".
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

enum class LoadSource {
  kOwn,      // a checkpoint that this job wrote into its own folder
  kInitial,  // initial_load_path or Hugging Face weights
};

// Returns resume_mode for this source. A job always recovers from its own checkpoints, so that the same
// command, started again, resumes.
config::ResumeMode resume_mode(const config::JobConfig& config, LoadSource source);

struct ComponentChoice {
  checkpoint::ComponentSet loaded;
  std::vector<std::string> left_out;  // by checkpoint.components or exclude_from_loading
};
// `weights_only` says that the checkpoint holds the model alone (a seed, a last save).
ComponentChoice choose_components(const config::JobConfig& config, LoadSource source, bool weights_only);

// Returns a sentence for each key that leaves parts out: the parts and the run's initial values in their
// place. A requeued job would begin with these at every start. `saved_step` is the checkpoint's step, `step`
// the updates done in this run's count.
std::vector<std::string> describe_left_out(const config::ResolvedConfig& resolved,
                                           const std::vector<std::string>& left_out, int64_t saved_step,
                                           int64_t step);

// Returns the remedy that leaves a component out, with the options of this source: "start once with
// --checkpoint.exclude_from_loading=dataloader (and without it again ...)".
std::string leave_out_remedy(const config::JobConfig& config, LoadSource source, std::string_view component);

}  // namespace hyperion::checkpointing
