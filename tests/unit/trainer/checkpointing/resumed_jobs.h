// Jobs and checkpoints for the tests of what a resume takes from where.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/support/error_of.h"
#include "trainer/checkpointing/resume_policy.h"

namespace hyperion::checkpointing {

inline const std::string kBase =
    "[training]\nsteps = 10\n[optimizer]\nlr = 0.1\n[lr_scheduler]\nwarmup_steps = 2\n";

inline config::ResolvedConfig job(const std::vector<config::Override>& overrides = {}) {
  return config::parse_config(kBase, "job.toml", overrides);
}

inline JobContext facts() {
  JobContext facts;
  facts.global_batch_size = 16;
  facts.seed = 7;
  facts.data = 0xabc;
  return facts;
}

inline checkpoint::ComponentSet all() {
  return {checkpoint::kStateComponents.begin(), checkpoint::kStateComponents.end()};
}

inline ResumePlan resume(const config::ResolvedConfig& now, int64_t step,
                         const JobContext& new_facts = facts(), checkpoint::ComponentSet components = all()) {
  return resume_plan(now, new_facts,
                     {LoadSource::kOwn, std::move(components), fresh_plan(job(), facts()).settings, step});
}

inline std::string refusal(const std::function<void()>& act, ExitCode code = ExitCode::kUsage) {
  return error_of(code, act);
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace hyperion::checkpointing
