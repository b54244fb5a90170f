#include "trainer/checkpointing/resume_policy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/printable.h"
#include "trainer/config/schema.h"

namespace hyperion::trainer {
namespace {

constexpr const char* kHorizon = "lr_scheduler.total_steps";
constexpr const char* kStart = "lr_scheduler.start_step";  // no key of the configuration
constexpr const char* kGlobalBatch = "training.global_batch_size";
constexpr const char* kSeed = "debug.seed";
constexpr size_t kMostEntries = 10'000, kLongestText = 65'536;

// Keys of the configuration that shape the curve, with the component that the setting belongs to: a setting
// is compared when its component is loaded.
struct Setting {
  const char* key;
  std::string_view component;
};
constexpr std::array<Setting, 17> kSettings = {{
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
}};

// What shapes say nothing about.
TextTable model_entries(const models::ModelArgs& model) {
  return {{"model.n_heads", fmt::format("{}", model.n_heads)},
          {"model.n_kv_heads", fmt::format("{}", model.n_kv_heads)},
          {"model.norm_eps", fmt::format("{}", model.norm_eps)},
          {"model.rope_theta", fmt::format("{}", model.rope_theta)},
          {"model.rope_scaling", fmt::format("{}", model.rope_scaling)},
          {"model.activation", std::string(text_of(model.activation))},
          {"model.rope_style",
           model.rope_style == models::RopeStyle::kInterleaved ? "interleaved" : "half-split"}};
}

// "" for what is never compared here.
std::string_view component_of_setting(const std::string& key) {
  if (key.starts_with("model.")) return checkpoint::kModelComponent;
  if (key == kSeed) return checkpoint::kLoaderComponent;
  if (key == kGlobalBatch) return checkpoint::kTrainStateComponent;
  for (const Setting& setting : kSettings)
    if (key == setting.key) return setting.component;
  return "";  // the curve's length and start, and the data, have rules of their own
}

// The key of the configuration that says the same.
std::string configuration_key(const std::string& key) {
  if (key == "model.rope_style") return "model.name";
  return key.starts_with("model.") ? "model.args." + key.substr(6) : key;
}

// Where the configured value of `key` was set, or what it follows from.
std::string origin_of(const ResolvedConfig& resolved, const std::string& key) {
  const auto set = [&](const char* other) { return resolved.origins.contains(other); };
  if (resolved.origins.contains(key)) return resolved.origin(key);
  if (key == kGlobalBatch && set("training.local_batch_size"))
    return "training.local_batch_size: " + resolved.origin("training.local_batch_size") +
           ", times the data-parallel ranks";
  if (key == kGlobalBatch) return "training.local_batch_size times the data-parallel ranks";
  if (key.starts_with("model.args.") && set("model.flavor"))
    return "the flavour's, model.flavor: " + resolved.origin("model.flavor");
  return resolved.origin(key);
}

void set_setting(Trajectory& trajectory, std::string_view key, std::string text) {
  for (auto& [name, value] : trajectory)
    if (name == key) return void(value = std::move(text));
  trajectory.emplace_back(key, std::move(text));
}

struct Change {
  std::string key, saved, configured;
};

std::vector<Change> changed_settings(const ResolvedConfig& resolved, const Trajectory& configured,
                                     const Trajectory& stored, const checkpoint::ComponentSet& components) {
  std::vector<Change> found;
  for (const auto& [key, now] : configured) {
    const std::string* saved = find_setting(stored, key);
    if (saved == nullptr || *saved == now || !components.contains(component_of_setting(key))) continue;
    if (key == kSeed && !resolved.config.debug.seed) continue;  // not asked for: the saved one is used
    found.push_back({key, *saved, now});
  }
  return found;
}

std::string change_lines(const ResolvedConfig& resolved, const std::vector<Change>& found) {
  std::string text;
  for (const Change& change : found) {
    const std::string key = configuration_key(change.key);
    text += fmt::format("\n  {}: saved {}, configured {} ({})", key, printable(change.saved),
                        change.configured, origin_of(resolved, key));
  }
  return text;
}

// Puts a saved value into the configuration. False for what a configuration cannot bring back.
bool take_saved_value(const Change& change, const TrajectoryFacts& facts, ResumePlan& plan) {
  if (change.key == kSeed) return true;  // resume_plan() takes it over in any case
  const Option* option = find_option(change.key);
  if (option == nullptr) return false;
  const std::optional<Value> value = parse_text(*option, change.saved);
  if (!value || !assign(*option, *value, plan.config)) return false;
  const int64_t microbatch = plan.config.training.local_batch_size * facts.data_parallel_degree;
  return change.key != kGlobalBatch || plan.config.training.global_batch_size % microbatch == 0;
}

// The loader's position means something in the same data alone. "" when they are.
std::string data_difference(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                            const ResumeRequest& request) {
  if (!request.components.contains(checkpoint::kLoaderComponent) || !request.data ||
      *request.data == facts.data)
    return "";
  const auto place = [](const std::string& where, uint64_t fingerprint) {
    return fmt::format("{} (fingerprint {:08x})", where.empty() ? "data that it does not name" : where,
                       fingerprint >> 32);
  };
  return fmt::format(
      "The checkpoint at step {} resumes in other data than this job's: {} there, {} here, chosen by "
      "training.dataset_path ({}) and training.text_field ({}); file names, sizes or the tokenizer differ. "
      "Configure the data that it was trained on; or, to begin these from their beginning, {}.",
      request.step, place(request.data_place, *request.data), place(facts.data_place, facts.data),
      resolved.origin("training.dataset_path"), resolved.origin("training.text_field"),
      leave_out_remedy(resolved.config, request.source, checkpoint::kLoaderComponent));
}

// The ways out of a refusal for `found` with checkpoint.on_config_change = "error": those values with which
// this resume passes, or what is in the way then.
std::string ways_out(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                     const ResumeRequest& request) {
  ResumeRequest settings = request;
  settings.data.reset();  // judged apart
  std::vector<std::string> ways;
  std::string obstacle;
  for (const auto& [policy, meaning] : {std::pair(OnConfigChange::kKeep, "to resume with the saved values"),
                                        {OnConfigChange::kOverride, "to resume with the configured ones"}}) {
    ResolvedConfig tried = resolved;
    tried.config.checkpoint.on_config_change = policy;
    const std::string option = override_text("checkpoint.on_config_change", std::string(text_of(policy)));
    try {
      resume_plan(tried, facts, settings);
      ways.push_back(fmt::format("{} {}", option, meaning));
    } catch (const Error& error) {
      obstacle = fmt::format("Start with {}, and mend what is in the way then: {}", option, error.what());
    }
  }
  return ways.empty() ? obstacle : fmt::format("Start with {}.", fmt::join(ways, ", or with "));
}

void apply_policy(const ResolvedConfig& resolved, const TrajectoryFacts& facts, const ResumeRequest& request,
                  const std::vector<Change>& found, const std::string& data, ResumePlan& plan) {
  const OnConfigChange policy = resume_mode(resolved.config, request.source) == ResumeMode::kRecover
                                    ? resolved.config.checkpoint.on_config_change
                                    : OnConfigChange::kOverride;
  std::vector<Change> impossible;
  for (const Change& change : found) {
    if (policy == OnConfigChange::kKeep && !take_saved_value(change, facts, plan))
      impossible.push_back(change);
  }
  if (policy == OnConfigChange::kError && !found.empty()) {
    throw_config("The checkpoint at step {} was saved with other settings:{}\n{}{}{}", request.step,
                 change_lines(resolved, found), ways_out(resolved, facts, request), data.empty() ? "" : "\n",
                 data);
  }
  if (!data.empty()) throw_config("{}", data);
  if (!impossible.empty()) {
    throw_config(
        "The checkpoint at step {} was saved with other settings that {} cannot bring back:{}\nConfigure the "
        "saved values, or start with {} to resume with the configured ones.",
        request.step, override_text("checkpoint.on_config_change", std::string(text_of(policy))),
        change_lines(resolved, impossible), override_text("checkpoint.on_config_change", "override"));
  }
  for (const Change& change : found) {
    const std::string key = configuration_key(change.key);
    if (policy == OnConfigChange::kKeep) {
      set_setting(plan.trajectory, change.key, change.saved);
      plan.notes.push_back(fmt::format("{}: keeping {} from the checkpoint (configured: {})", key,
                                       change.saved, change.configured));
    } else {
      plan.notes.push_back(fmt::format("{}: taking {} from the configuration (saved: {})", key,
                                       change.configured, change.saved));
    }
  }
}

// What a run begins with in the place of a component that it does not load.
std::string describe_beginning(std::string_view part, const ResumePlan& plan, int64_t step) {
  if (part == checkpoint::kModelComponent) return "the weights are random";
  if (part == checkpoint::kOptimizerComponent) return "the optimizer's moments start from 0";
  if (part == checkpoint::kEmaComponent) return "the averages start from the weights";
  if (part == checkpoint::kSchedulerComponent)
    return fmt::format("the learning-rate curve starts at step {}", step + 1);
  if (part == checkpoint::kLoaderComponent)
    return plan.config.debug.seed
               ? fmt::format("the data start from their beginning (epoch 1 in the order of seed {})",
                             plan.seed)
               : "the data start from their beginning (epoch 1 in the order of a new seed, as debug.seed is "
                 "unset)";
  if (part == checkpoint::kTrainStateComponent) return "steps are counted from 0";
  if (part == checkpoint::kRngComponent) return "random numbers start from the seed";
  throw_bug("no text says what a run begins with without {}", part);
}

// A choice of parts stays in a command that is started again: a job that is requeued would begin its data,
// say, at every start.
void warn_of_left_out(const ResolvedConfig& resolved, const ResumeRequest& request, ResumePlan& plan) {
  const auto& checkpoint = resolved.config.checkpoint;
  const int64_t step = request.components.contains(checkpoint::kTrainStateComponent) ? request.step : 0;
  const bool again = resume_mode(resolved.config, LoadSource::kOwn) == checkpoint.resume_mode;
  for (const char* key : {"checkpoint.exclude_from_loading", "checkpoint.components"}) {
    const bool by_name = key == std::string_view("checkpoint.exclude_from_loading");
    std::vector<std::string> beginnings;
    std::vector<std::string> parts;
    for (const std::string& part : request.left_out) {
      if (by_name != (std::ranges::count(checkpoint.exclude_from_loading, part) > 0)) continue;
      parts.push_back(part);
      beginnings.push_back(describe_beginning(part, plan, step));
    }
    if (parts.empty()) continue;
    plan.warnings.push_back(fmt::format(
        "{} ({}): {} of the checkpoint at step {} {} not read: {}{}", key, resolved.origin(key),
        fmt::join(parts, ", "), request.step, parts.size() == 1 ? "is" : "are", fmt::join(beginnings, "; "),
        again ? "; this happens at every start, so take the key out when this one has saved a checkpoint"
              : ""));
  }
}

// `text`: the value of `key` in the checkpoint's trajectory.
template <typename Number>
Number stored_number(const std::string& text, const char* key, Number minimum) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < minimum)
    throw_data("the checkpoint's {} is \"{}\", expected a whole number of at least {}", key, printable(text),
               minimum);
  return number;
}

// Length and start of the curve: the checkpoint's, unless the curve is not loaded.
void place_curve(const ResolvedConfig& resolved, const ResumeRequest& request, ResumePlan& plan) {
  const JobConfig& config = resolved.config;
  auto& horizon = plan.config.lr_scheduler.total_steps;
  if (!request.components.contains(checkpoint::kTrainStateComponent)) return;  // counts from step 0 again
  if (!request.components.contains(checkpoint::kSchedulerComponent)) {
    plan.schedule_start = request.step;
    if (!config.lr_scheduler.total_steps)
      horizon = std::max<int64_t>(1, config.training.steps - request.step);
    plan.notes.push_back(fmt::format("the learning-rate curve starts again at step {} and has {}",
                                     request.step + 1, counted(*horizon, "step")));
    return;
  }
  if (!request.stored) {
    plan.notes.push_back(fmt::format(
        "the checkpoint is not Hyperion's: the learning-rate curve ({}) and lr = {} come from the "
        "configuration",
        counted(*horizon, "step"), config.optimizer.lr));
    return;
  }
  if (const std::string* start = find_setting(*request.stored, kStart))
    plan.schedule_start = stored_number<int64_t>(*start, kStart, 0);
  const std::string* saved = find_setting(*request.stored, kHorizon);
  if (saved == nullptr) return;
  const auto stored = stored_number<int64_t>(*saved, kHorizon, 1);
  const bool configured = config.lr_scheduler.total_steps.has_value();
  if (stored != *horizon)
    plan.notes.push_back(
        configured
            ? fmt::format("lr_scheduler.total_steps: the curve changes from {} to {}", stored,
                          counted(*horizon, "step"))
            : fmt::format("the learning-rate curve keeps its {} from the checkpoint, whatever training.steps "
                          "= {} is; set lr_scheduler.total_steps to change it",
                          counted(stored, "step"), config.training.steps));
  if (!configured) horizon = stored;
}

// The options that give the curve a floor above 0, as the resume takes them: where the stored floor is
// compared, the changed one needs its permission.
std::string floor_remedy(const ResolvedConfig& resolved, const ResumeRequest* request) {
  std::vector<std::string> options = {override_text("lr_scheduler.min_lr_factor", "0.1")};
  const bool compared = request != nullptr && request->stored &&
                        request->components.contains(checkpoint::kSchedulerComponent) &&
                        resume_mode(resolved.config, request->source) == ResumeMode::kRecover;
  if (compared && resolved.config.checkpoint.resume_mode != ResumeMode::kRecover)
    options.push_back(override_text("checkpoint.resume_mode", "recover"));
  if (compared && resolved.config.checkpoint.on_config_change != OnConfigChange::kOverride)
    options.push_back(override_text("checkpoint.on_config_change", "override"));
  return fmt::format("{}", fmt::join(options, " "));
}

// No step may train with a rate of 0 because its curve has ended. `step`: updates done; `request`: null for a
// run from step 0.
void check_curve(const ResolvedConfig& resolved, int64_t step, const ResumeRequest* request,
                 ResumePlan& plan) {
  const JobConfig& config = plan.config;
  std::ranges::move(curve_cuts(config.lr_scheduler, config.training.steps),
                    std::back_inserter(plan.warnings));
  const int64_t total = *config.lr_scheduler.total_steps, last = config.training.steps;
  if (last <= step || last - plan.schedule_start <= total || config.optimizer.lr == 0) return;
  const int64_t end = plan.schedule_start + total;  // the curve's last step
  const double floor = schedule_of(config).factor(last - 1 - plan.schedule_start);
  if (floor == 0) {
    throw_config(
        "the learning-rate curve ends at step {} with a rate of 0, so steps {} to training.steps = {} would "
        "learn nothing: start with {} for a curve that ends with the run, or with {} for a floor",
        end, std::max(step, end) + 1, last,
        override_text("lr_scheduler.total_steps", std::to_string(last - plan.schedule_start)),
        floor_remedy(resolved, request));
  }
  plan.warnings.push_back(
      fmt::format("the learning-rate curve ends at step {}: the steps after it train with lr = {}", end,
                  config.optimizer.lr * floor));
}

// All that a checkpoint can give this job, before checkpoint.components and exclude_from_loading choose.
checkpoint::ComponentSet loadable_components(const JobConfig& config, LoadSource source, bool weights_only) {
  if (weights_only || resume_mode(config, source) == ResumeMode::kTransfer ||
      (source == LoadSource::kInitial && config.checkpoint.initial_load_model_only))
    return {std::string(checkpoint::kModelComponent)};
  checkpoint::ComponentSet components(checkpoint::kStateComponents.begin(),
                                      checkpoint::kStateComponents.end());
  if (!config.ema.enable) components.erase(std::string(checkpoint::kEmaComponent));
  return components;
}

// Whether checkpoint.components or exclude_from_loading leave the component out.
bool is_left_out(const JobConfig::Checkpoint& checkpoint, const std::string& component) {
  const auto& chosen = checkpoint.components;
  return (!chosen.empty() && std::ranges::count(chosen, component) == 0) ||
         std::ranges::count(checkpoint.exclude_from_loading, component) > 0;
}

// As the configuration says, with nothing judged yet.
ResumePlan configured_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  ResumePlan plan;
  plan.config = resolved.config;
  plan.seed = facts.seed;
  plan.config.lr_scheduler.total_steps =
      resolved.config.lr_scheduler.total_steps.value_or(resolved.config.training.steps);
  const auto set = [&](std::string_view key, std::string text) {
    set_setting(plan.trajectory, key, std::move(text));
  };
  for (const Setting& setting : kSettings)
    if (setting.component != checkpoint::kEmaComponent || resolved.config.ema.enable)
      set(setting.key, command_line_text(read(*find_option(setting.key), resolved.config)));
  set(kHorizon, std::to_string(*plan.config.lr_scheduler.total_steps));
  set(kStart, "0");
  set(kGlobalBatch, std::to_string(facts.global_batch_size));
  set(kSeed, std::to_string(facts.seed));
  set("data", fmt::format("{:016x}", facts.data));
  for (const auto& [key, text] : model_entries(facts.model)) set(key, text);
  return plan;
}

}  // namespace

ResumeMode resume_mode(const JobConfig& config, LoadSource source) {
  const auto& checkpoint = config.checkpoint;
  const bool starts_elsewhere = checkpoint.initial_load_path || checkpoint.initial_load_in_hf;
  return source == LoadSource::kOwn && starts_elsewhere ? ResumeMode::kRecover : checkpoint.resume_mode;
}

std::vector<std::string> components_left_out(const JobConfig& config, LoadSource source, bool weights_only) {
  std::vector<std::string> left_out;
  const checkpoint::ComponentSet loadable = loadable_components(config, source, weights_only);
  // Components are chosen for the start from elsewhere; of what the job saved itself all are read again. Of
  // weights alone nothing can be left out.
  if (loadable.size() == 1 || resume_mode(config, source) != config.checkpoint.resume_mode) return left_out;
  for (const std::string_view name : checkpoint::kStateComponents)
    if (const std::string component(name);
        loadable.contains(component) && is_left_out(config.checkpoint, component))
      left_out.push_back(component);
  return left_out;
}

checkpoint::ComponentSet components_to_load(const JobConfig& config, LoadSource source, bool weights_only) {
  checkpoint::ComponentSet components = loadable_components(config, source, weights_only);
  for (const std::string& component : components_left_out(config, source, weights_only))
    components.erase(component);
  return components;
}

std::string leave_out_remedy(const JobConfig& config, LoadSource source, std::string_view component) {
  const std::string part(component);
  const auto& checkpoint = config.checkpoint;
  std::string options;
  if (resume_mode(config, source) != checkpoint.resume_mode) {  // the choice of parts was for the first start
    options = override_text("checkpoint.resume_mode", "recover") + " " +
              override_text("checkpoint.exclude_from_loading", part);
  } else if (!checkpoint.components.empty()) {
    std::vector<std::string> parts = checkpoint.components;
    std::erase(parts, part);
    if (parts.empty()) return "choose other checkpoint.components";
    options = override_text("checkpoint.components", fmt::format("{}", fmt::join(parts, ",")));
  } else {
    std::vector<std::string> parts = checkpoint.exclude_from_loading;
    parts.push_back(part);
    options = override_text("checkpoint.exclude_from_loading", fmt::format("{}", fmt::join(parts, ",")));
  }
  const bool again =
      resume_mode(config, LoadSource::kOwn) == checkpoint.resume_mode || source == LoadSource::kOwn;
  return fmt::format("start {}with {}{}", again ? "once " : "", options,
                     again ? " (and without it again when that start has saved a checkpoint)" : "");
}

const std::string* find_setting(const Trajectory& trajectory, std::string_view key) {
  const auto found = std::ranges::find(trajectory, key, &TextTable::value_type::first);
  return found == trajectory.end() ? nullptr : &found->second;
}

LrSchedule schedule_of(const JobConfig& config) {
  return {config.lr_scheduler, config.training.steps};
}

double learning_rate(const ResumePlan& plan, int64_t step) {
  return plan.config.optimizer.lr * schedule_of(plan.config).factor(step - 1 - plan.schedule_start);
}

ResumePlan fresh_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  ResumePlan plan = configured_plan(resolved, facts);
  check_curve(resolved, 0, nullptr, plan);
  return plan;
}

ResumePlan resume_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                       const ResumeRequest& request) {
  ResumePlan plan = configured_plan(resolved, facts);
  const std::string data = data_difference(resolved, facts, request);
  if (!request.stored && !data.empty()) throw_config("{}", data);
  if (request.stored) {
    apply_policy(resolved, facts, request,
                 changed_settings(resolved, plan.trajectory, *request.stored, request.components), data,
                 plan);
    const std::string* seed = find_setting(*request.stored, kSeed);
    const bool keeps =
        resolved.config.checkpoint.on_config_change == OnConfigChange::kKeep || !resolved.config.debug.seed;
    if (seed != nullptr && keeps && request.components.contains(checkpoint::kLoaderComponent)) {
      plan.seed = stored_number<uint64_t>(*seed, kSeed, 0);
      set_setting(plan.trajectory, kSeed, *seed);
    }
  }
  place_curve(resolved, request, plan);
  set_setting(plan.trajectory, kHorizon, std::to_string(*plan.config.lr_scheduler.total_steps));
  set_setting(plan.trajectory, kStart, std::to_string(plan.schedule_start));
  warn_of_left_out(resolved, request, plan);
  check_curve(resolved, request.components.contains(checkpoint::kTrainStateComponent) ? request.step : 0,
              &request, plan);
  return plan;
}

checkpoint::Object to_object(const TextTable& table) {
  checkpoint::Dict dict;
  for (const auto& [key, text] : table)
    dict.items.emplace_back(checkpoint::Object(key), checkpoint::Object(text));
  return dict;
}

TextTable text_table(const checkpoint::Object& object, const std::string& where) {
  const auto* dict = object.get_if<checkpoint::Dict>();
  if (dict == nullptr || dict->items.size() > kMostEntries)
    throw_data("{}: expected a dict of at most {} texts, found {}", where, kMostEntries,
               checkpoint::repr(object));
  TextTable table;
  for (const auto& [key, value] : dict->items) {
    const auto *name = key.get_if<std::string>(), *text = value.get_if<std::string>();
    if (name == nullptr || text == nullptr || name->size() + text->size() > kLongestText)
      throw_data("{}: expected texts, found {}: {}", where, checkpoint::repr(key), checkpoint::repr(value));
    table.emplace_back(*name, *text);
  }
  return table;
}

}  // namespace hyperion::trainer
