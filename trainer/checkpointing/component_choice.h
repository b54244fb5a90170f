// Which parts of the state are read from a checkpoint: docs/resume.md, "Which parts are read". Pure.
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

// resume_mode for this source: a job that was started from elsewhere recovers from its own checkpoints, so
// that it resumes when the same command starts it again.
config::ResumeMode resume_mode(const config::JobConfig& config, LoadSource source);

struct ComponentChoice {
  checkpoint::ComponentSet loaded;
  std::vector<std::string> left_out;  // by checkpoint.components or exclude_from_loading
};
// `weights_only`: the checkpoint holds the model alone (a seed, a last save).
ComponentChoice choose_components(const config::JobConfig& config, LoadSource source, bool weights_only);

// A sentence for each key that leaves some of `left_out` out: the parts, and what the run begins with in
// their place. A job that is requeued would begin so at every start. `saved_step`: of the checkpoint; `step`:
// updates done in this run's count.
std::vector<std::string> describe_left_out(const config::ResolvedConfig& resolved,
                                           const std::vector<std::string>& left_out, int64_t saved_step,
                                           int64_t step);

// How to leave a component of a checkpoint out, by the options that apply to this source: "start once with
// --checkpoint.exclude_from_loading=dataloader (and without it again ...)".
std::string leave_out_remedy(const config::JobConfig& config, LoadSource source, std::string_view component);

}  // namespace hyperion::checkpointing
