#include "trainer/config/validate_checkpoint.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hyperion::config {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Where the keys that decide it are set: " (model.args.n_heads: job.toml:5:11)".
std::string model_args_origins(const ResolvedConfig& resolved, const std::vector<std::string>& keys) {
  std::vector<std::string> places;
  for (const std::string& key : keys)
    if (const auto found = resolved.origins.find("model.args." + key); found != resolved.origins.end())
      places.push_back(fmt::format("{}: {}", found->first, found->second));
  return places.empty() ? "" : fmt::format(" ({})", fmt::join(places, ", "));
}

void check_export(const ResolvedConfig& resolved, const RunFacts& facts, Problems& problems) {
  if (!resolved.config.checkpoint.last_save_in_hf || !facts.export_problem) return;
  problems.add(
      resolved, "checkpoint.last_save_in_hf",
      fmt::format("the model cannot be exported to Hugging Face: {}{}; change that, or set false",
                  facts.export_problem->text, model_args_origins(resolved, facts.export_problem->keys)));
}

void check_saving(const ResolvedConfig& resolved, const RunFacts& facts, Problems& problems) {
  const auto& c = resolved.config.checkpoint;
  if (c.create_seed_checkpoint && resolved.config.comm.mode == CommMode::kFakeBackend) {
    problems.add(resolved, "checkpoint.create_seed_checkpoint",
                 "a dry run (comm.mode = \"fake_backend\") saves nothing");
  } else if (c.create_seed_checkpoint && facts.world_size.value_or(1) != 1) {
    problems.add(resolved, "checkpoint.create_seed_checkpoint",
                 fmt::format("expected a job of one process, not of {}: a seed checkpoint is the same for "
                             "every number of ranks",
                             *facts.world_size));
  }
  if (c.load_only && c.create_seed_checkpoint)
    problems.add(resolved, "checkpoint.create_seed_checkpoint", "load_only = true saves nothing");
  if (c.load_only && c.enable_first_step_checkpoint)
    problems.add(resolved, "checkpoint.enable_first_step_checkpoint", "load_only = true saves nothing");
  if (c.last_save_in_hf && !c.last_save_model_only) {
    problems.add(
        resolved, "checkpoint.last_save_in_hf",
        fmt::format("expected last_save_model_only = true with it, as safetensors hold weights alone; it "
                    "is false ({})",
                    resolved.origin("checkpoint.last_save_model_only")));
  }
  if (c.export_dtype != checkpoint::Dtype::kFloat32 && !c.last_save_model_only) {
    problems.add(resolved, "checkpoint.export_dtype",
                 "expected last_save_model_only = true too: only a last save of weights alone is "
                 "converted");
  }
}

// exclude_from_loading (v0.2.2's key) and components (Hyperion's) must not contradict each other.
void check_components(const ResolvedConfig& resolved, Problems& problems) {
  const auto& c = resolved.config.checkpoint;
  if (contains(c.exclude_from_loading, checkpoint::kOptimizerComponent) &&
      !contains(c.exclude_from_loading, checkpoint::kSchedulerComponent)) {
    problems.add(resolved, "checkpoint.exclude_from_loading",
                 "expected lr_scheduler in the list too: the learning-rate schedule would resume while the "
                 "optimizer's moments start from 0");
  }
  for (const std::string& component : c.components) {
    if (contains(c.exclude_from_loading, component)) {
      problems.add(resolved, "checkpoint.components",
                   fmt::format("{} is in exclude_from_loading too: name it in one of them", component));
    }
  }
}

void check_transfer(const ResolvedConfig& resolved, Problems& problems) {
  const auto& c = resolved.config.checkpoint;
  if (!c.initial_load_path && !c.initial_load_in_hf) {
    problems.add(resolved, "checkpoint.resume_mode",
                 "expected initial_load_path too: the step-N folder whose weights are loaded");
  }
  if (!c.initial_load_model_only) {
    problems.add(resolved, "checkpoint.initial_load_model_only",
                 "resume_mode = \"transfer\" loads the model alone: set true, or resume_mode = \"continue\"");
  }
  if (!c.components.empty() && c.components != std::vector<std::string>{"model"}) {
    problems.add(resolved, "checkpoint.components",
                 "resume_mode = \"transfer\" loads the model alone: set resume_mode = \"continue\"");
  }
  if (contains(c.exclude_from_loading, checkpoint::kModelComponent)) {
    problems.add(resolved, "checkpoint.exclude_from_loading",
                 "resume_mode = \"transfer\" loads the model and nothing else");
  }
}

void check_loading(const ResolvedConfig& resolved, Problems& problems) {
  const auto& c = resolved.config.checkpoint;
  if (c.initial_load_in_hf && !c.initial_load_model_only) {
    problems.add(resolved, "checkpoint.initial_load_in_hf",
                 "expected initial_load_model_only = true too: safetensors hold weights alone");
  }
  if (c.resume_mode == ResumeMode::kTransfer) check_transfer(resolved, problems);
  if (c.resume_mode == ResumeMode::kContinue && c.initial_load_path && c.initial_load_model_only) {
    problems.add(resolved, "checkpoint.initial_load_model_only",
                 "resume_mode = \"continue\" loads more than the model: set false, or resume_mode = "
                 "\"transfer\"");
  }
  if (c.resume_mode != ResumeMode::kRecover && c.on_config_change != OnConfigChange::kError) {
    problems.add(resolved, "checkpoint.on_config_change",
                 fmt::format("only resume_mode = \"recover\" compares settings; \"{}\" takes those of the "
                             "configuration",
                             text_of(c.resume_mode)));
  }
  check_components(resolved, problems);
}

}  // namespace

void check_checkpoint(const ResolvedConfig& resolved, const RunFacts& facts, Problems& problems) {
  const JobConfig& config = resolved.config;
  if (config.checkpoint.enable) {
    check_saving(resolved, facts, problems);
    check_export(resolved, facts, problems);
    check_loading(resolved, problems);
  } else if (config.checkpoint.initial_load_path || config.checkpoint.initial_load_in_hf) {
    problems.add(resolved,
                 config.checkpoint.initial_load_path ? "checkpoint.initial_load_path"
                                                     : "checkpoint.initial_load_in_hf",
                 "expected checkpoint.enable = true too: without checkpoints nothing is loaded and the "
                 "weights would be random; add checkpoint.load_only = true to load and save nothing");
  }
  if (config.ema.enable && config.ema.validate_with_ema && !config.validation.enable)
    problems.add(resolved, "ema.validate_with_ema", "expected validation.enable = true too");
}

}  // namespace hyperion::config
