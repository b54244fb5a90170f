#include "trainer/checkpointing/curve_settings.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "base/choice.h"
#include "checkpoint/state.h"
#include "models/flavors/registry.h"
#include "trainer/config/schema.h"

namespace hyperion::checkpointing {
namespace {

// This entry stands for all keys of optimizers' own tables, such as [optimizer.muon].
constexpr std::string_view kOptimizerTables = "optimizer.*.*";

const Setting kSettings[] = {
    {"optimizer.name", checkpoint::kOptimizerComponent},
    {"optimizer.beta1", checkpoint::kOptimizerComponent},
    {"optimizer.beta2", checkpoint::kOptimizerComponent},
    {"optimizer.eps", checkpoint::kOptimizerComponent},
    {"optimizer.weight_decay", checkpoint::kOptimizerComponent},
    {kOptimizerTables, checkpoint::kOptimizerComponent},
    {kDecayOfNorms, checkpoint::kOptimizerComponent},
    {kStateDtype, checkpoint::kOptimizerComponent},
    {kGroups, checkpoint::kOptimizerComponent},
    {"optimizer.lr", checkpoint::kSchedulerComponent},
    {"lr_scheduler.warmup_steps", checkpoint::kSchedulerComponent},
    {"lr_scheduler.decay_ratio", checkpoint::kSchedulerComponent},
    {"lr_scheduler.decay_type", checkpoint::kSchedulerComponent},
    {"lr_scheduler.min_lr_factor", checkpoint::kSchedulerComponent},
    {kLengthKey, checkpoint::kTrainStateComponent},
    {kRamp, checkpoint::kTrainStateComponent},
    {kRampUnit, checkpoint::kTrainStateComponent},
    {"training.max_norm", checkpoint::kTrainStateComponent},
    {kZLoss, checkpoint::kTrainStateComponent},
    {"training.mixed_precision_param", checkpoint::kTrainStateComponent},
    {kShuffleKey, checkpoint::kLoaderComponent},
    {"training.shuffle_window", checkpoint::kLoaderComponent},
    {"training.document_mask", checkpoint::kLoaderComponent},
    {"ema.decay", checkpoint::kEmaComponent, &config::kEma},
    {"ema.every", checkpoint::kEmaComponent, &config::kEma},
};

std::vector<Setting> expand_settings() {
  std::vector<Setting> settings;
  for (const Setting& setting : kSettings) {
    if (setting.key != kOptimizerTables) {
      settings.push_back(setting);
      continue;
    }
    for (const config::Option& option : config::all_options())
      if (option.section().starts_with("optimizer."))
        settings.push_back({option.name, setting.component, option.feature});
  }
  return settings;
}

}  // namespace

std::span<const Setting> curve_settings() {
  static const std::vector<Setting> settings = expand_settings();
  return settings;
}

std::string_view component_of_setting(std::string_view key) {
  if (key.starts_with("model.")) return checkpoint::kModelComponent;
  if (key == kSeed || key == kSources) return checkpoint::kLoaderComponent;
  if (key == kGlobalBatch) return checkpoint::kTrainStateComponent;
  const auto found = std::ranges::find(curve_settings(), key, &Setting::key);
  return found == curve_settings().end() ? "" : found->component;
}

CurveSettings model_settings(const models::ModelArgs& model) {
  CurveSettings settings;
  models::for_each_dimension(
      [&](const char* key, models::ModelPart part, models::ResumeCheck check, auto, auto member) {
        if (check != models::ResumeCheck::kSetting || !models::has_part(model, part)) return;
        const auto& value = member(model);
        if constexpr (EnumWithTexts<std::decay_t<decltype(value)>>)
          settings.emplace_back(fmt::format("model.{}", key), text_of(value));
        else
          settings.emplace_back(fmt::format("model.{}", key), fmt::format("{}", value));
      });
  settings.emplace_back("model.rope_style",
                        model.rope.style == models::RopeStyle::kInterleaved ? "interleaved" : "half-split");
  if (model.experts.are_present())
    settings.emplace_back(kForcedBalance, fmt::format("{}", model.experts.force_load_balance));
  return settings;
}

const std::string* find_setting(const CurveSettings& settings, std::string_view key) {
  const auto found = std::ranges::find(settings, key, &config::TextTable::value_type::first);
  return found == settings.end() ? nullptr : &found->second;
}

void set_setting(CurveSettings& settings, std::string_view key, std::string text) {
  std::ranges::find(settings, key, &config::TextTable::value_type::first)->second = std::move(text);
}

}  // namespace hyperion::checkpointing
