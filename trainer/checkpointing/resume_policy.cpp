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

namespace hyperion {
namespace {

constexpr const char* kHorizon = "lr_scheduler.total_steps";
constexpr const char* kStart = "lr_scheduler.start_step";  // no key of the configuration
constexpr const char* kGlobalBatch = "training.global_batch_size";
constexpr const char* kSeed = "debug.seed";
constexpr const char* kData = "data";
constexpr size_t kMostEntries = 10'000, kLongestText = 65'536;

// Keys of the configuration that shape the curve, with the component that the setting belongs to: what is not
// loaded is not compared.
struct Shaping {
  const char* key;
  std::string_view component;
};
constexpr std::array<Shaping, 17> kShaping = {{
    {"optimizer.name", kOptimizerComponent},
    {"optimizer.beta1", kOptimizerComponent},
    {"optimizer.beta2", kOptimizerComponent},
    {"optimizer.eps", kOptimizerComponent},
    {"optimizer.weight_decay", kOptimizerComponent},
    {"optimizer.lr", kSchedulerComponent},
    {"lr_scheduler.warmup_steps", kSchedulerComponent},
    {"lr_scheduler.decay_ratio", kSchedulerComponent},
    {"lr_scheduler.decay_type", kSchedulerComponent},
    {"lr_scheduler.min_lr_factor", kSchedulerComponent},
    {"training.seq_len", kTrainStateComponent},
    {"training.max_norm", kTrainStateComponent},
    {"training.mixed_precision_param", kTrainStateComponent},
    {"training.shuffle", kLoaderComponent},
    {"training.document_mask", kLoaderComponent},
    {"ema.decay", kEmaComponent},
    {"ema.every", kEmaComponent},
}};

std::string text_of(const JobConfig& config, const char* key) {
  return command_line_text(read(*find_option(key), config));
}

// What shapes say nothing about.
TextTable model_entries(const ModelArgs& model) {
  return {{"model.n_heads", fmt::format("{}", model.n_heads)},
          {"model.n_kv_heads", fmt::format("{}", model.n_kv_heads)},
          {"model.norm_eps", fmt::format("{}", model.norm_eps)},
          {"model.rope_theta", fmt::format("{}", model.rope_theta)},
          {"model.rope_scaling", fmt::format("{}", model.rope_scaling)},
          {"model.rope_style", model.rope_style == RopeStyle::kInterleaved ? "interleaved" : "half-split"}};
}

std::string owner(const std::string& key) {
  if (key.starts_with("model.")) return "model";
  if (key == kSeed) return "dataloader";
  if (key == kGlobalBatch) return "train_state";
  for (const Shaping& shaping : kShaping)
    if (key == shaping.key) return std::string(shaping.component);
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

struct Change {
  std::string key, saved, configured;
};

std::vector<Change> changes(const ResolvedConfig& resolved, const Trajectory& configured,
                            const Trajectory& stored, const std::set<std::string>& components) {
  std::vector<Change> found;
  for (const auto& [key, now] : configured.entries) {
    const std::string* saved = stored.find(key);
    if (saved == nullptr || *saved == now || !components.contains(owner(key))) continue;
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
bool keep(const Change& change, const TrajectoryFacts& facts, ResumePlan& plan) {
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
  if (!request.components.contains("dataloader") || !request.data || *request.data == facts.data) return "";
  const auto place = [](const std::string& where, uint64_t fingerprint) {
    return fmt::format("{} (fingerprint {:08x})", where.empty() ? "data that it does not name" : where,
                       fingerprint >> 32);
  };
  return fmt::format(
      "The checkpoint at step {} goes on in other data than this job's: {} there, {} here, chosen by "
      "training.dataset_path ({}) and training.text_field ({}); file names, sizes or the tokenizer differ. "
      "Configure the data that it was trained on; or, to begin these from their beginning, {}.",
      request.step, place(request.data_place, *request.data), place(facts.data_place, facts.data),
      resolved.origin("training.dataset_path"), resolved.origin("training.text_field"),
      leave_out_remedy(resolved.config, request.source, "dataloader"));
}

// The ways out of a refusal for `found` with checkpoint.on_config_change = "error": those values with which
// this resume passes, or what is in the way then.
std::string ways_out(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                     const ResumeRequest& request) {
  ResumeRequest settings = request;
  settings.data.reset();  // judged apart
  std::vector<std::string> ways;
  std::string obstacle;
  for (const auto& [policy, meaning] : {std::pair(OnConfigChange::kKeep, "to go on with the saved values"),
                                        {OnConfigChange::kOverride, "to go on with the configured ones"}}) {
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
    if (policy == OnConfigChange::kKeep && !keep(change, facts, plan)) impossible.push_back(change);
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
        "saved values, or start with {} to go on with the configured ones.",
        request.step, override_text("checkpoint.on_config_change", std::string(text_of(policy))),
        change_lines(resolved, impossible), override_text("checkpoint.on_config_change", "override"));
  }
  for (const Change& change : found) {
    const std::string key = configuration_key(change.key);
    if (policy == OnConfigChange::kKeep) {
      plan.trajectory.set(change.key, change.saved);
      plan.notes.push_back(fmt::format("{}: keeping {} from the checkpoint (configured: {})", key,
                                       change.saved, change.configured));
    } else {
      plan.notes.push_back(fmt::format("{}: taking {} from the configuration (saved: {})", key,
                                       change.configured, change.saved));
    }
  }
}

// What a run without this part of a checkpoint begins with.
std::string beginning_of(const std::string& part, const ResumePlan& plan, int64_t step) {
  if (part == kModelComponent) return "the weights are random";
  if (part == kOptimizerComponent) return "the optimizer's moments start from 0";
  if (part == kEmaComponent) return "the averages start from the weights";
  if (part == kSchedulerComponent) return fmt::format("the learning-rate curve starts at step {}", step + 1);
  if (part == kLoaderComponent)
    return plan.config.debug.seed
               ? fmt::format("the data start from their beginning (epoch 1 in the order of seed {})",
                             plan.seed)
               : "the data start from their beginning (epoch 1 in the order of a new seed, as debug.seed is "
                 "unset)";
  if (part == kTrainStateComponent) return "steps are counted from 0";
  return "random numbers start from the seed";
}

// A choice of parts stays in a command that is started again: a job that is requeued would begin its data,
// say, at every start.
void warn_of_left_out(const ResolvedConfig& resolved, const ResumeRequest& request, ResumePlan& plan) {
  const auto& checkpoint = resolved.config.checkpoint;
  const int64_t step = request.components.contains("train_state") ? request.step : 0;
  const bool again = resume_mode(resolved.config, LoadSource::kOwn) == checkpoint.resume_mode;
  for (const char* key : {"checkpoint.exclude_from_loading", "checkpoint.components"}) {
    const bool by_name = key == std::string_view("checkpoint.exclude_from_loading");
    std::vector<std::string> beginnings;
    std::vector<std::string> parts;
    for (const std::string& part : request.left_out) {
      if (by_name != (std::ranges::count(checkpoint.exclude_from_loading, part) > 0)) continue;
      parts.push_back(part);
      beginnings.push_back(beginning_of(part, plan, step));
    }
    if (parts.empty()) continue;
    plan.warnings.push_back(fmt::format(
        "{} ({}): {} of the checkpoint at step {} {} not read: {}{}", key, resolved.origin(key),
        fmt::join(parts, ", "), request.step, parts.size() == 1 ? "is" : "are", fmt::join(beginnings, "; "),
        again ? "; this happens at every start, so take the key out when this one has saved a checkpoint"
              : ""));
  }
}

int64_t whole_number(const std::string& text, const char* key, int64_t minimum) {
  const auto value = parse_text(*find_option("training.steps"), text);
  const auto* number = value ? std::get_if<int64_t>(&*value) : nullptr;
  if (number == nullptr || *number < minimum)
    throw_data("the checkpoint's {} is \"{}\", expected a whole number of at least {}", key, printable(text),
               minimum);
  return *number;
}

uint64_t seed_of(const std::string& text) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    throw_data("the checkpoint's {} is \"{}\", expected a whole number", kSeed, printable(text));
  return seed;
}

// Length and start of the curve: the checkpoint's, unless the curve is not loaded.
void place_curve(const ResolvedConfig& resolved, const ResumeRequest& request, ResumePlan& plan) {
  const JobConfig& config = resolved.config;
  auto& horizon = plan.config.lr_scheduler.total_steps;
  if (!request.components.contains("train_state")) return;  // counts from step 0 again
  if (!request.components.contains("lr_scheduler")) {
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
  if (const std::string* start = request.stored->find(kStart))
    plan.schedule_start = whole_number(*start, kStart, 0);
  const std::string* saved = request.stored->find(kHorizon);
  if (saved == nullptr) return;
  const int64_t stored = whole_number(*saved, kHorizon, 1);
  if (config.lr_scheduler.total_steps) {
    if (stored != *horizon)
      plan.notes.push_back(fmt::format("lr_scheduler.total_steps: the curve changes from {} to {}", stored,
                                       counted(*horizon, "step")));
    return;
  }
  if (stored != *horizon)
    plan.notes.push_back(
        fmt::format("the learning-rate curve keeps its {} from the checkpoint, whatever training.steps "
                    "= {} is; set lr_scheduler.total_steps to change it",
                    counted(stored, "step"), config.training.steps));
  horizon = stored;
}

// The options that give the curve a floor above 0, as the resume takes them: where the stored floor is
// compared, the changed one needs its permission.
std::string floor_remedy(const ResolvedConfig& resolved, const ResumeRequest* request) {
  std::vector<std::string> options = {override_text("lr_scheduler.min_lr_factor", "0.1")};
  const bool compared = request != nullptr && request->stored &&
                        request->components.contains(owner("lr_scheduler.min_lr_factor")) &&
                        resume_mode(resolved.config, request->source) == ResumeMode::kRecover;
  if (compared && resolved.config.checkpoint.resume_mode != ResumeMode::kRecover)
    options.push_back(override_text("checkpoint.resume_mode", "recover"));
  if (compared && resolved.config.checkpoint.on_config_change != OnConfigChange::kOverride)
    options.push_back(override_text("checkpoint.on_config_change", "override"));
  return fmt::format("{}", fmt::join(options, " "));
}

// No step may train with a rate of 0 because its curve has ended. `step`: updates done; `request`: null for a
// run from step 0.
void check_rates(const ResolvedConfig& resolved, int64_t step, const ResumeRequest* request,
                 ResumePlan& plan) {
  const JobConfig& config = plan.config;
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

bool starts_elsewhere(const JobConfig::Checkpoint& checkpoint) {
  return checkpoint.initial_load_path || checkpoint.initial_load_in_hf;
}

}  // namespace

ResumeMode resume_mode(const JobConfig& config, LoadSource source) {
  const bool recovers = source == LoadSource::kOwn && starts_elsewhere(config.checkpoint);
  return recovers ? ResumeMode::kRecover : config.checkpoint.resume_mode;
}

std::set<std::string> components_to_load(const JobConfig& config, LoadSource source, bool weights_only) {
  const auto& c = config.checkpoint;
  const ResumeMode mode = resume_mode(config, source);
  if (weights_only || mode == ResumeMode::kTransfer ||
      (source == LoadSource::kInitial && c.initial_load_model_only))
    return {"model"};
  std::set<std::string> chosen(kStateComponents.begin(), kStateComponents.end());
  // Chosen for the start from elsewhere; what the job saved itself is whole again.
  if (mode == c.resume_mode) {
    if (!c.components.empty()) chosen = {c.components.begin(), c.components.end()};
    for (const std::string& part : c.exclude_from_loading) chosen.erase(part);
  }
  if (!config.ema.enable) chosen.erase("ema");
  return chosen;
}

std::vector<std::string> parts_left_out(const JobConfig& config, LoadSource source, bool weights_only) {
  JobConfig whole = config;
  whole.checkpoint.components.clear();
  whole.checkpoint.exclude_from_loading.clear();
  const std::set<std::string> every = components_to_load(whole, source, weights_only),
                              read = components_to_load(config, source, weights_only);
  std::vector<std::string> parts;
  for (const std::string_view part : kStateComponents)
    if (every.contains(std::string(part)) && !read.contains(std::string(part))) parts.emplace_back(part);
  return parts;
}

std::string leave_out_remedy(const JobConfig& config, LoadSource source, const std::string& part) {
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

const std::string* Trajectory::find(std::string_view key) const {
  for (const auto& [name, text] : entries)
    if (name == key) return &text;
  return nullptr;
}

void Trajectory::set(const std::string& key, std::string text) {
  for (auto& [name, value] : entries)
    if (name == key) return void(value = std::move(text));
  entries.emplace_back(key, std::move(text));
}

LrSchedule schedule_of(const JobConfig& config) {
  return {config.lr_scheduler, config.training.steps};
}

double learning_rate(const ResumePlan& plan, int64_t step) {
  return plan.config.optimizer.lr * schedule_of(plan.config).factor(step - 1 - plan.schedule_start);
}

namespace {

void warn_of_cuts(ResumePlan& plan) {
  std::ranges::move(curve_cuts(plan.config.lr_scheduler, plan.config.training.steps),
                    std::back_inserter(plan.warnings));
}

// As the configuration says, with nothing judged yet.
ResumePlan configured_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  ResumePlan plan;
  plan.config = resolved.config;
  plan.seed = facts.seed;
  plan.config.lr_scheduler.total_steps =
      resolved.config.lr_scheduler.total_steps.value_or(resolved.config.training.steps);
  Trajectory& t = plan.trajectory;
  for (const Shaping& shaping : kShaping)
    if (shaping.component != kEmaComponent || resolved.config.ema.enable)
      t.set(shaping.key, text_of(resolved.config, shaping.key));
  t.set(kHorizon, std::to_string(*plan.config.lr_scheduler.total_steps));
  t.set(kStart, "0");
  t.set(kGlobalBatch, std::to_string(facts.global_batch_size));
  t.set(kSeed, std::to_string(facts.seed));
  t.set(kData, fmt::format("{:016x}", facts.data));
  for (const auto& [key, text] : model_entries(facts.model)) t.set(key, text);
  return plan;
}

}  // namespace

ResumePlan fresh_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  ResumePlan plan = configured_plan(resolved, facts);
  warn_of_cuts(plan);
  check_rates(resolved, 0, nullptr, plan);
  return plan;
}

ResumePlan resume_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                       const ResumeRequest& request) {
  ResumePlan plan = configured_plan(resolved, facts);
  const std::string data = data_difference(resolved, facts, request);
  if (!request.stored && !data.empty()) throw_config("{}", data);
  if (request.stored) {
    apply_policy(resolved, facts, request,
                 changes(resolved, plan.trajectory, *request.stored, request.components), data, plan);
    const std::string* seed = request.stored->find(kSeed);
    const bool keeps =
        resolved.config.checkpoint.on_config_change == OnConfigChange::kKeep || !resolved.config.debug.seed;
    if (seed != nullptr && keeps && request.components.contains("dataloader")) {
      plan.seed = seed_of(*seed);
      plan.trajectory.set(kSeed, *seed);
    }
  }
  place_curve(resolved, request, plan);
  plan.trajectory.set(kHorizon, std::to_string(*plan.config.lr_scheduler.total_steps));
  plan.trajectory.set(kStart, std::to_string(plan.schedule_start));
  warn_of_left_out(resolved, request, plan);
  warn_of_cuts(plan);
  check_rates(resolved, request.components.contains("train_state") ? request.step : 0, &request, plan);
  return plan;
}

Object to_object(const TextTable& table) {
  Dict dict;
  for (const auto& [key, text] : table) dict.items.emplace_back(Object(key), Object(text));
  return dict;
}

TextTable text_table(const Object& object, const std::string& where) {
  const auto* dict = object.get_if<Dict>();
  if (dict == nullptr || dict->items.size() > kMostEntries)
    throw_data("{}: expected a dict of at most {} texts, found {}", where, kMostEntries, repr(object));
  TextTable table;
  for (const auto& [key, value] : dict->items) {
    const auto *name = key.get_if<std::string>(), *text = value.get_if<std::string>();
    if (name == nullptr || text == nullptr || name->size() + text->size() > kLongestText)
      throw_data("{}: expected texts, found {}: {}", where, repr(key), repr(value));
    table.emplace_back(*name, *text);
  }
  return table;
}

}  // namespace hyperion
