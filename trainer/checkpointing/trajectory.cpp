#include "trainer/checkpointing/trajectory.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/printable.h"
#include "trainer/config/schema.h"

namespace hyperion::checkpointing {
namespace {

using namespace std::string_view_literals;

constexpr auto kGlobalBatch = "training.global_batch_size"sv;
constexpr size_t kMaxEntries = 10'000, kMaxTextBytes = 65'536;

// Keys of the configuration that shape the curve, with the component that the setting belongs to: a setting
// is compared when its component is loaded.
struct Setting {
  std::string_view key, component;
};
constexpr Setting kSettings[] = {
    {"optimizer.name", checkpoint::kOptimizerComponent},
    {"optimizer.beta1", checkpoint::kOptimizerComponent},
    {"optimizer.beta2", checkpoint::kOptimizerComponent},
    {"optimizer.eps", checkpoint::kOptimizerComponent},
    {"optimizer.weight_decay", checkpoint::kOptimizerComponent},
    {"optimizer.lr", checkpoint::kSchedulerComponent},
    {"lr_scheduler.warmup_steps", checkpoint::kSchedulerComponent},
    {"lr_scheduler.decay_ratio", checkpoint::kSchedulerComponent},
    {"lr_scheduler.decay_type", checkpoint::kSchedulerComponent},
    {"lr_scheduler.min_lr_factor", checkpoint::kSchedulerComponent},
    {"training.seq_len", checkpoint::kTrainStateComponent},
    {"training.max_norm", checkpoint::kTrainStateComponent},
    {"training.mixed_precision_param", checkpoint::kTrainStateComponent},
    {"training.shuffle", checkpoint::kLoaderComponent},
    {"training.document_mask", checkpoint::kLoaderComponent},
    {"ema.decay", checkpoint::kEmaComponent},
    {"ema.every", checkpoint::kEmaComponent},
};

// "" for what is not compared as a setting: the curve's length and start, and the data.
std::string_view component_of_setting(std::string_view key) {
  if (key.starts_with("model.")) return checkpoint::kModelComponent;
  if (key == kSeedSetting) return checkpoint::kLoaderComponent;
  if (key == kGlobalBatch) return checkpoint::kTrainStateComponent;
  const auto found = std::ranges::find(kSettings, key, &Setting::key);
  return found == std::end(kSettings) ? "" : found->component;
}

// Where the configured value of `key` was set, or what it follows from.
std::string origin_of(const config::ResolvedConfig& resolved, const std::string& key) {
  const auto set = [&](const char* other) { return resolved.origins.contains(other); };
  if (set(key.c_str())) return resolved.origin(key);
  if (key == kGlobalBatch)
    return fmt::format(
        "training.local_batch_size{} times the data-parallel ranks",
        set("training.local_batch_size") ? ": " + resolved.origin("training.local_batch_size") + "," : "");
  if (key.starts_with("model.args.") && set("model.flavor"))
    return "the flavour's, model.flavor: " + resolved.origin("model.flavor");
  return resolved.origin(key);
}

}  // namespace

const std::string* find_setting(const Trajectory& trajectory, std::string_view key) {
  const auto found = std::ranges::find(trajectory, key, &config::TextTable::value_type::first);
  return found == trajectory.end() ? nullptr : &found->second;
}

void set_setting(Trajectory& trajectory, std::string_view key, std::string text) {
  std::ranges::find(trajectory, key, &config::TextTable::value_type::first)->second = std::move(text);
}

Trajectory configured_trajectory(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  const config::JobConfig& config = resolved.config;
  const models::ModelArgs& model = facts.model;
  Trajectory trajectory;
  for (const auto& [key, component] : kSettings)
    if (component != checkpoint::kEmaComponent || config.ema.enable)
      trajectory.emplace_back(
          key, config::command_line_text(config::read(*config::find_option(std::string(key)), config)));
  const auto add = [&](std::string_view key, const auto& value) {
    trajectory.emplace_back(key, fmt::format("{}", value));
  };
  add(kTotalStepsSetting, config.lr_scheduler.total_steps.value_or(config.training.steps));
  add(kStartSetting, 0);
  add(kGlobalBatch, facts.global_batch_size);
  add(kSeedSetting, facts.seed);
  add("data", fmt::format("{:016x}", facts.data));
  // What shapes say nothing about.
  add("model.n_heads", model.n_heads);
  add("model.n_kv_heads", model.n_kv_heads);
  add("model.norm_eps", model.norm_eps);
  add("model.rope_theta", model.rope_theta);
  add("model.rope_scaling", model.rope_scaling);
  add("model.activation", text_of(model.activation));
  add("model.rope_style", model.rope_style == models::RopeStyle::kInterleaved ? "interleaved" : "half-split");
  return trajectory;
}

std::string SettingChange::configuration_key() const {
  if (key == "model.rope_style") return "model.name";
  return key.starts_with("model.") ? "model.args." + key.substr(6) : key;
}

std::vector<SettingChange> changed_settings(const config::ResolvedConfig& resolved,
                                            const Trajectory& configured, const Trajectory& stored,
                                            const checkpoint::ComponentSet& components) {
  // Checkpoints from before the setting: all of them were trained with it.
  static const std::string silu(text_of(models::Activation::kSilu));
  std::vector<SettingChange> changes;
  for (const auto& [key, now] : configured) {
    const std::string* saved = find_setting(stored, key);
    if (saved == nullptr && key == "model.activation" && !stored.empty()) saved = &silu;
    if (saved == nullptr || *saved == now || !components.contains(component_of_setting(key))) continue;
    if (key == kSeedSetting && !resolved.config.debug.seed) continue;  // the saved one is used
    changes.push_back({key, *saved, now});
  }
  return changes;
}

std::string describe_changes(const config::ResolvedConfig& resolved,
                             const std::vector<SettingChange>& changes) {
  std::string text;
  for (const SettingChange& change : changes) {
    const std::string key = change.configuration_key();
    text += fmt::format("\n  {}: saved {}, configured {} ({})", key, printable(change.saved),
                        change.configured, origin_of(resolved, key));
  }
  return text;
}

bool take_saved_value(const SettingChange& change, const TrajectoryFacts& facts, config::JobConfig& config) {
  if (change.key == kSeedSetting) return true;  // resume_plan() takes it over in any case
  const config::Option* option = config::find_option(change.key);
  const std::optional<config::Value> value =
      option ? config::parse_text(*option, change.saved) : std::nullopt;
  if (!value || !config::assign(*option, *value, config)) return false;
  const int64_t microbatch = config.training.local_batch_size * facts.data_parallel_degree;
  return change.key != kGlobalBatch || config.training.global_batch_size % microbatch == 0;
}

checkpoint::Object to_object(const config::TextTable& table) {
  checkpoint::Dict dict;
  for (const auto& [key, text] : table)
    dict.items.emplace_back(checkpoint::Object(key), checkpoint::Object(text));
  return dict;
}

config::TextTable text_table(const checkpoint::Object& object, const std::string& where) {
  const auto* dict = object.get_if<checkpoint::Dict>();
  if (dict == nullptr || dict->items.size() > kMaxEntries)
    throw_data("{}: expected a dict of at most {} texts, found {}", where, kMaxEntries,
               checkpoint::repr(object));
  config::TextTable table;
  for (const auto& [key, value] : dict->items) {
    const auto *name = key.get_if<std::string>(), *text = value.get_if<std::string>();
    if (name == nullptr || text == nullptr || name->size() + text->size() > kMaxTextBytes)
      throw_data("{}: expected texts, found {}: {}", where, checkpoint::repr(key), checkpoint::repr(value));
    table.emplace_back(*name, *text);
  }
  return table;
}

}  // namespace hyperion::checkpointing
