#include "trainer/checkpointing/component_choice.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trainer/config/overrides.h"

namespace hyperion::checkpointing {
namespace {

// A row says, for each component, whether a load of weights alone includes it (a seed, a last save,
// `transfer`, initial_load_model_only), and what a run begins with that does not load it. A full state
// includes all components, ema if the job has it. These checks refuse a component, and these are the
// remedies:
//   model         other names or shapes (checkpoint/loader.h)
//   ema           the checkpoint holds none (start.h): ema.on_missing
//   dataloader    other data; another tokenizer (start.h): leave_out_remedy()
//   any           other settings (resume_policy.h): checkpoint.on_config_change
struct ComponentRule {
  std::string_view component;
  bool in_weights;
  const char* beginning;
};
constexpr ComponentRule kRules[] = {
    {checkpoint::kModelComponent, true, "the weights are random"},
    {checkpoint::kOptimizerComponent, false, "the optimizer's moments start from 0"},
    {checkpoint::kSchedulerComponent, false, "the learning-rate curve starts at step {step}"},
    {checkpoint::kLoaderComponent, false,
     "the data start from their beginning (epoch 1 in the order of {seed})"},
    {checkpoint::kTrainStateComponent, false, "steps are counted from 0"},
    {checkpoint::kRngComponent, false, "random numbers start from the seed"},
    {checkpoint::kEmaComponent, false, "the averages start from the weights"},
};
static_assert(std::size(kRules) == checkpoint::kStateComponents.size());

// Returns whether the keys that choose components apply to this source. A job that was started from elsewhere
// reads its own checkpoints completely.
bool choice_applies(const config::JobConfig& config, LoadSource source) {
  return resume_mode(config, source) == config.checkpoint.resume_mode;
}

bool is_left_out(const config::JobConfig::Checkpoint& checkpoint, std::string_view component) {
  const auto& chosen = checkpoint.components;
  return (!chosen.empty() && std::ranges::count(chosen, component) == 0) ||
         std::ranges::count(checkpoint.exclude_from_loading, component) > 0;
}

}  // namespace

config::ResumeMode resume_mode(const config::JobConfig& config, LoadSource source) {
  const auto& checkpoint = config.checkpoint;
  const bool starts_elsewhere = checkpoint.initial_load_path || checkpoint.initial_load_in_hf;
  return source == LoadSource::kOwn && starts_elsewhere ? config::ResumeMode::kRecover
                                                        : checkpoint.resume_mode;
}

ComponentChoice choose_components(const config::JobConfig& config, LoadSource source, bool weights_only) {
  const bool weights = weights_only || resume_mode(config, source) == config::ResumeMode::kTransfer ||
                       (source == LoadSource::kInitial && config.checkpoint.initial_load_model_only);
  ComponentChoice choice;
  for (const auto& [component, in_weights, beginning] : kRules) {
    if (weights ? !in_weights : component == checkpoint::kEmaComponent && !config.ema.enable) continue;
    // Nothing can be left out of weights alone.
    if (!weights && choice_applies(config, source) && is_left_out(config.checkpoint, component))
      choice.left_out.emplace_back(component);
    else
      choice.loaded.emplace(component);
  }
  return choice;
}

std::vector<std::string> describe_left_out(const config::ResolvedConfig& resolved,
                                           const std::vector<std::string>& left_out, int64_t saved_step,
                                           int64_t step) {
  const config::JobConfig& config = resolved.config;
  const std::string seed =
      config.debug.seed ? fmt::format("seed {}", *config.debug.seed) : "a new seed, as debug.seed is unset";
  const auto& excluded = config.checkpoint.exclude_from_loading;
  std::vector<std::string> sentences;
  for (const bool by_name : {true, false}) {
    const char* key = by_name ? "checkpoint.exclude_from_loading" : "checkpoint.components";
    std::vector<std::string> parts, beginnings;
    for (const std::string& part : left_out) {
      if (by_name != (std::ranges::count(excluded, part) > 0)) continue;
      const auto rule = std::ranges::find(kRules, part, &ComponentRule::component);
      parts.push_back(part);
      beginnings.push_back(
          fmt::format(fmt::runtime(rule->beginning), fmt::arg("step", step + 1), fmt::arg("seed", seed)));
    }
    if (parts.empty()) continue;
    sentences.push_back(fmt::format(
        "{} ({}): {} of the checkpoint at step {} {} not read: {}{}", key, resolved.origin(key),
        fmt::join(parts, ", "), saved_step, parts.size() == 1 ? "is" : "are", fmt::join(beginnings, "; "),
        choice_applies(config, LoadSource::kOwn)
            ? "; this happens at every start, so take the key out when this one has saved a checkpoint"
            : ""));
  }
  return sentences;
}

std::string leave_out_remedy(const config::JobConfig& config, LoadSource source, std::string_view component) {
  const auto& checkpoint = config.checkpoint;
  const bool applies = choice_applies(config, source), by_name = !applies || checkpoint.components.empty();
  std::vector<std::string> parts;
  if (applies) parts = by_name ? checkpoint.exclude_from_loading : checkpoint.components;
  if (by_name) parts.emplace_back(component);
  if (!by_name && std::erase(parts, component) > 0 && parts.empty())
    return "choose other checkpoint.components";
  const std::string once =
      source == LoadSource::kOwn || choice_applies(config, LoadSource::kOwn) ? "once " : "";
  return fmt::format(
      "start {}with {}{}{}", once,
      applies ? "" : config::override_text("checkpoint.resume_mode", "recover") + " ",
      config::override_text(by_name ? "checkpoint.exclude_from_loading" : "checkpoint.components",
                            fmt::format("{}", fmt::join(parts, ","))),
      once.empty() ? "" : " (and without it again when that start has saved a checkpoint)");
}

}  // namespace hyperion::checkpointing
