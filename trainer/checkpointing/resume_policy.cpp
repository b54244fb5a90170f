#include "trainer/checkpointing/resume_policy.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/choice.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "models/args/model_args.h"
#include "trainer/checkpointing/batch_policy.h"
#include "trainer/checkpointing/source_policy.h"
#include "trainer/config/print.h"
#include "trainer/config/schema.h"
#include "trainer/optim/lr_schedule.h"

namespace hyperion::checkpointing {
namespace {

// Returns the origin of the configured value of `key`, or the value that it follows from.
std::string origin_of(const config::ResolvedConfig& resolved, const std::string& key) {
  const auto set = [&](const char* other) { return resolved.origins.contains(other); };
  if (key == kGlobalBatch && !resolved.config.training.global_batch_ramp.empty())
    return "the largest of training.global_batch_ramp";
  const bool follows = key == kGlobalBatch && resolved.config.training.global_batch_size == -1;
  if (set(key.c_str()) && !follows) return resolved.origin(key);
  if (key == kGlobalBatch)
    return fmt::format(
        "training.local_batch_size{} times the data-parallel ranks",
        set("training.local_batch_size") ? ": " + resolved.origin("training.local_batch_size") + "," : "");
  if (key.starts_with("model.args.") && set("model.flavor"))
    return "the flavour's, model.flavor: " + resolved.origin("model.flavor");
  return resolved.origin(key);
}

CurveSettings configured_settings(const config::ResolvedConfig& resolved, const JobContext& job) {
  const config::JobConfig& config = resolved.config;
  CurveSettings settings;
  for (const auto& [key, component, feature] : curve_settings())
    if (feature == nullptr || feature->on(config))
      settings.emplace_back(key,
                            config::command_line_text(read(*config::find_option(std::string(key)), config)));
  const auto add = [&](std::string_view key, const auto& value) {
    settings.emplace_back(key, fmt::format("{}", value));
  };
  add(kTotalSteps, config.lr_scheduler.total_steps.value_or(config.training.steps));
  add(kStart, 0);
  add(kGlobalBatch, job.global_batch_size);
  add(kSeed, job.seed);
  add(kSources, shares_text(job.sources));
  add("data", fmt::format("{:016x}", job.data));
  std::ranges::move(model_settings(job.model), std::back_inserter(settings));
  return settings;
}

struct SettingChange {
  std::string key, saved, configured;
};

// Returns the configuration key of a setting.
std::string configuration_key(const std::string& setting) {
  if (setting == "model.rope_style") return "model.name";
  if (setting == kForcedBalance) return "debug.moe_force_load_balance";
  return setting.starts_with("model.") ? "model.args." + setting.substr(6) : setting;
}

// Returns whether another value of this setting changes what the weights compute. Expert balance affects
// training only.
bool is_of_weights(std::string_view key) {
  return key.starts_with("model.") && key != kForcedBalance && key != "model.load_balance_coeff" &&
         std::ranges::find(kRouterLosses, key) == std::end(kRouterLosses);
}

// Returns the settings of `components` whose value differs from the stored one.
std::vector<SettingChange> changed_settings(const config::ResolvedConfig& resolved,
                                            const CurveSettings& configured, const CurveSettings& stored,
                                            const checkpoint::ComponentSet& components) {
  // Checkpoints older than the setting were all trained with this value.
  static const std::map<std::string_view, std::string> first_values = {
      {"model.activation", std::string(text_of(models::Activation::kSilu))},
      {"model.sliding_window_size", "0"},
      {kSources, kOneDataSet},
      {kDecayOfNorms, "true"},
      {kStateDtype, "float32"},
      {kRamp, std::string(kNoRamp)},
      {kRampUnit, "steps"},
      {kZLoss, "0.0"},
      {kGroups, "[]"},
      {kRouterLosses[0], "0"},
      {kRouterLosses[1], "0"},
      {kRouterLosses[2], "0"}};
  // A saved ramp is the batch; a ramp that takes the place of one batch is compared with that batch too.
  const std::string* const ramp = find_setting(stored, kRamp);
  const bool had_ramp = ramp != nullptr && *ramp != kNoRamp,
             has_ramp = !resolved.config.training.global_batch_ramp.empty();
  std::vector<SettingChange> changes;
  for (const auto& [key, now] : configured) {
    if (key == kGlobalBatch && had_ramp) continue;
    if (key == kRampUnit && !had_ramp && !has_ramp) continue;  // nothing depends on it
    const std::string* saved = find_setting(stored, key);
    if (const auto first = first_values.find(key);
        saved == nullptr && !stored.empty() && first != first_values.end())
      saved = &first->second;
    const bool other = saved != nullptr && (*saved != now || (key == kGlobalBatch && has_ramp));
    if (!other || !components.contains(component_of_setting(key))) continue;
    if (key == kSeed && !resolved.config.debug.seed) continue;  // the saved one is used
    changes.push_back({key, *saved, now});
  }
  return changes;
}

// Returns one line per setting, each after a line break: both values and the origin of the configured one.
std::string describe_changes(const config::ResolvedConfig& resolved, const JobContext& job,
                             const std::vector<SettingChange>& changes) {
  std::string text;
  for (const auto& [setting, saved, configured] : changes) {
    const std::string key = configuration_key(setting);
    text += fmt::format("\n  {}: saved {}, configured {} ({})", key, printable(saved), configured,
                        origin_of(resolved, key));
    const std::optional<int64_t> batch =
        setting == kGlobalBatch ? parse_number<int64_t>(saved) : std::nullopt;
    if (batch)
      if (const std::string obstacle = batch_obstacle(resolved.config, *batch, job.data_parallel_degree);
          !obstacle.empty())
        text += "; " + obstacle;
  }
  return text;
}

// Puts the saved value into the configuration. Returns false if no key can express it.
bool take_saved_value(const SettingChange& change, const JobContext& job, config::JobConfig& config) {
  if (change.key == kSeed) return true;  // keep_seed() takes it over in any case
  if (change.key == kSources) return take_shares(change.saved, config.training.sources);
  const int64_t configured_length = config.training.seq_len;
  const config::Option* option = config::find_option(change.key);
  const std::optional<config::Value> value =
      option ? config::parse_text(*option, change.saved) : std::nullopt;
  if (!value || !assign(*option, *value, config)) return false;
  if (change.key == kLengthKey) {  // on the other side of YaRN's length it is another model
    const models::ModelArgs model = config::model_args(config.model);
    return models::scales_by_yarn(model.rope, config.training.seq_len) ==
           models::scales_by_yarn(model.rope, configured_length);
  }
  if (change.key == kRamp && change.saved != kNoRamp) config.training.global_batch_size = -1;
  const int64_t microbatch = config.training.local_batch_size * job.data_parallel_degree;
  return change.key != kGlobalBatch || config.training.global_batch_size % microbatch == 0;
}

std::string on_config_change(config::OnConfigChange policy) {
  return config::override_text("checkpoint.on_config_change", std::string(text_of(policy)));
}

// Plans one run; a run after step 0 has a checkpoint to resume from.
class Planner {
 public:
  Planner(const config::ResolvedConfig& resolved, const JobContext& job, const ResumeRequest* request)
      : resolved_(resolved),
        config_(resolved.config),
        job_(job),
        request_(request),
        policy_(config_.checkpoint.on_config_change) {
    plan_.config = config_;
    plan_.seed = job.seed;
    plan_.settings = configured_settings(resolved, job);
    plan_.config.lr_scheduler.total_steps = config_.lr_scheduler.total_steps.value_or(config_.training.steps);
    if (request == nullptr) return;
    if (loads(checkpoint::kTrainStateComponent)) step_ = request->step;
  }

  ResumePlan run() {
    if (request_ != nullptr) {
      place_curve();
      keep_batch();
      compare_settings();
      keep_seed();
      std::ranges::move(describe_left_out(resolved_, request_->left_out, request_->step, step_),
                        std::back_inserter(plan_.warnings));
    }
    require_learning_steps();
    return std::move(plan_);
  }

 private:
  bool loads(std::string_view component) const { return request_->components.contains(component); }
  // Weights load into another run, which keeps its own settings.
  bool loads_weights_alone() const {
    return std::ranges::all_of(request_->components, [](const std::string& component) {
      return component == checkpoint::kModelComponent || component == checkpoint::kEmaComponent;
    });
  }

  // Reads a number among the checkpoint's settings.
  template <typename Number>
  std::optional<Number> stored_number(const char* key, Number minimum) const {
    const std::string* text = request_->stored ? find_setting(*request_->stored, key) : nullptr;
    if (text == nullptr) return std::nullopt;
    const auto number = parse_number<Number>(*text);
    if (!number || *number < minimum)
      throw_data("the checkpoint's {} is \"{}\", expected a whole number of at least {}", key,
                 printable(*text), minimum);
    return number;
  }

  // The curve's length and start are the checkpoint's if the curve is loaded.
  void place_curve() {
    auto& total = plan_.config.lr_scheduler.total_steps;
    const bool configured = config_.lr_scheduler.total_steps.has_value();
    if (!loads(checkpoint::kTrainStateComponent)) return;  // counts from step 0
    if (!loads(checkpoint::kSchedulerComponent)) {
      plan_.schedule_start = step_;
      if (!configured) total = std::max<int64_t>(1, config_.training.steps - step_);
      note("the learning-rate curve starts again at step {} and has {}", step_ + 1, counted(*total, "step"));
    } else if (!request_->stored) {
      note(
          "the checkpoint is not Hyperion's: the learning-rate curve ({}) and lr = {} come from the "
          "configuration",
          counted(*total, "step"), config_.optimizer.lr);
    } else {
      plan_.schedule_start = stored_number<int64_t>(kStart, 0).value_or(0);
      const int64_t stored = stored_number<int64_t>(kTotalSteps, 1).value_or(*total);
      if (stored != *total && configured)
        note("lr_scheduler.total_steps: the curve changes from {} to {}", stored, counted(*total, "step"));
      else if (stored != *total)
        note(
            "the learning-rate curve keeps its {} from the checkpoint, whatever training.steps = {} is; set "
            "lr_scheduler.total_steps to change it",
            counted(stored, "step"), config_.training.steps);
      if (!configured) total = stored;
    }
    set_setting(plan_.settings, kTotalSteps, std::to_string(*total));
    set_setting(plan_.settings, kStart, std::to_string(plan_.schedule_start));
  }

  // A job on another number of ranks keeps the saved batch, unless its configuration says otherwise.
  void keep_batch() {
    if (!request_->stored || !loads(checkpoint::kTrainStateComponent) ||
        policy_ != config::OnConfigChange::kError ||
        resume_mode(config_, request_->source) != config::ResumeMode::kRecover)
      return;
    const StepBatch saved = {stored_number<int64_t>(kGlobalBatch, 1).value_or(0),
                             request_->data_parallel_degree};
    if (saved.sequences == 0 ||
        !keeps_batch(config_, saved, {job_.global_batch_size, job_.data_parallel_degree}))
      return;
    ResumePlan kept = plan_;
    // compare_settings() refuses the difference if the job cannot run with the saved batch.
    const std::string text = std::to_string(saved.sequences);
    if (!take_saved_value({kGlobalBatch, text, ""}, job_, kept.config) || !problem_of(kept).empty()) return;
    plan_ = std::move(kept);
    set_setting(plan_.settings, kGlobalBatch, text);
    note("{}", describe_kept_batch(config_, saved, job_.data_parallel_degree));
  }

  void compare_settings() {
    const std::string data = data_difference();
    std::vector<SettingChange> changes =
        changed_settings(resolved_, plan_.settings,
                         request_->stored ? *request_->stored : request_->stored_model, request_->components);
    if (loads(checkpoint::kLoaderComponent))
      for (const auto& [saved, now] : sources_of_other_data(request_->sources, job_.sources))
        changes.push_back({kSources, saved, now});
    const auto is_of_run = [](const SettingChange& one) { return !is_of_weights(one.key); };
    if (loads_weights_alone()) std::erase_if(changes, is_of_run);
    std::vector<SettingChange> compared = changes;
    if (resume_mode(config_, request_->source) != config::ResumeMode::kRecover)
      std::erase_if(compared, is_of_run);
    if (policy_ == config::OnConfigChange::kError && !compared.empty())
      throw_config("The checkpoint at step {} was saved with other settings:{}\n{}{}{}", request_->step,
                   describe_changes(resolved_, job_, compared), ways_out(compared), data.empty() ? "" : "\n",
                   data);
    if (!data.empty()) throw_config("{}", data);
    const bool keep = policy_ == config::OnConfigChange::kKeep;
    if (keep) {
      if (const std::vector<SettingChange> impossible = keep_saved_values(changes, plan_);
          !impossible.empty())
        throw_config(
            "The checkpoint at step {} was saved with other settings that {} cannot bring back:{}\nConfigure "
            "the saved values, or start with {} to resume with the configured ones.",
            request_->step, on_config_change(policy_), describe_changes(resolved_, job_, impossible),
            on_config_change(config::OnConfigChange::kOverride));
      if (const std::string problem = problem_of(plan_); !problem.empty())
        throw_config(
            "{}\nThese are the values that {} keeps: start with {} to resume with the configured ones.",
            problem, on_config_change(policy_), on_config_change(config::OnConfigChange::kOverride));
    } else if (const auto order = std::ranges::find(changes, kShuffleKey, &SettingChange::key);
               order != changes.end()) {
      throw_config(
          "The checkpoint at step {} is at a place in data of another order:{}\nConfigure the saved {}; or, "
          "to begin the data from their beginning, {}.",
          request_->step, describe_changes(resolved_, job_, {*order}), kShuffleKey, leave_out_data());
    }
    for (const SettingChange& change : changes) {
      const std::string key = configuration_key(change.key);
      if (keep)
        note("{}: keeping {} from the checkpoint (configured: {})", key, change.saved, change.configured);
      else
        note("{}: taking {} from the configuration (saved: {})", key, change.configured, change.saved);
    }
  }

  // Returns why the loader's position does not fit, because the data differ; "" if they are the same.
  std::string data_difference() const {
    if (!loads(checkpoint::kLoaderComponent) || request_->data.value_or(job_.data) == job_.data) return "";
    // A list of sources is compared source by source, and one data set may continue as one of them.
    if (!job_.sources.empty() ||
        std::ranges::count(request_->sources, job_.data, &data::SourceState::fingerprint) > 0)
      return "";
    const auto describe = [](const std::string& where, uint64_t fingerprint) {
      return fmt::format("{} (fingerprint {:08x})", where.empty() ? "data that it does not name" : where,
                         fingerprint >> 32);
    };
    return fmt::format(
        "The checkpoint at step {} resumes in other data than this job's: {} there, {} here, chosen by "
        "training.dataset_path ({}) and training.text_field ({}); file names, sizes or the tokenizer differ. "
        "Configure the data that it was trained on; or, to begin these from their beginning, {}.",
        request_->step, describe(request_->data_path, *request_->data), describe(job_.data_path, job_.data),
        resolved_.origin("training.dataset_path"), resolved_.origin("training.text_field"), leave_out_data());
  }

  std::string leave_out_data() const {
    return leave_out_remedy(config_, request_->source, checkpoint::kLoaderComponent);
  }

  // Returns why the job cannot run with the saved values; "" if it can.
  std::string problem_of(const ResumePlan& kept) const {
    if (!job_.require_runnable) return "";
    try {
      job_.require_runnable(followed_config(resolved_, kept.config));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  // Puts the saved values into the plan. Returns the settings that no key can express.
  std::vector<SettingChange> keep_saved_values(const std::vector<SettingChange>& changes,
                                               ResumePlan& plan) const {
    std::vector<SettingChange> impossible;
    for (const SettingChange& change : changes) {
      if (take_saved_value(change, job_, plan.config))
        set_setting(plan.settings, change.key, change.saved);
      else
        impossible.push_back(change);
    }
    return impossible;
  }

  // Returns the values of on_config_change with which this resume passes, or the obstacle to each.
  std::string ways_out(const std::vector<SettingChange>& changes) const {
    ResumePlan kept = plan_;
    const bool can_keep = keep_saved_values(changes, kept).empty() && problem_of(kept).empty();
    std::vector<std::string> ways;
    if (can_keep && floor_after_curve(kept) != 0)
      ways.push_back(on_config_change(config::OnConfigChange::kKeep) + " to resume with the saved values");
    const std::string override_values = on_config_change(config::OnConfigChange::kOverride);
    const bool ends_at_zero = floor_after_curve(plan_) == 0;
    // A position in the data is meaningless in another order.
    if (std::ranges::find(changes, kShuffleKey, &SettingChange::key) != changes.end())
      return fmt::format(
          "{}The place in the data means nothing in another order of them: configure the saved {}; or, to "
          "begin the data from their beginning, {}.{}{}",
          ways.empty() ? "" : fmt::format("Start with {}. ", ways.front()), kShuffleKey, leave_out_data(),
          changes.size() > 1 ? fmt::format(" The other settings need {} then.", override_values) : "",
          ends_at_zero ? fmt::format(" What is in the way then: {}.", explain_zero_rate(policy_)) : "");
    if (!ends_at_zero) ways.push_back(override_values + " to resume with the configured ones");
    return ways.empty() ? fmt::format("Start with {}, and mend what is in the way then: {}", override_values,
                                      explain_zero_rate(config::OnConfigChange::kOverride))
                        : fmt::format("Start with {}.", fmt::join(ways, ", or with "));
  }

  // Returns the learning-rate factor of steps after the end of the plan's curve; nullopt if it trains none
  // there.
  std::optional<double> floor_after_curve(const ResumePlan& plan) const {
    const config::JobConfig& config = plan.config;
    const int64_t last = config.training.steps, of_curve = last - plan.schedule_start;
    if (last <= step_ || of_curve <= *config.lr_scheduler.total_steps || config.optimizer.lr == 0) return {};
    return optim::LrSchedule(config.lr_scheduler, last).factor(of_curve - 1);
  }

  // Returns the error of a start with `policy` that would train at a rate of 0 after the end of its curve,
  // with the remedies.
  std::string explain_zero_rate(config::OnConfigChange policy) const {
    std::string floor = config::override_text("lr_scheduler.min_lr_factor", "0.1");
    // If the stored floor is compared, a changed floor needs on_config_change.
    if (request_ != nullptr && request_->stored && loads(checkpoint::kSchedulerComponent) &&
        resume_mode(config_, request_->source) == config::ResumeMode::kRecover) {
      if (config_.checkpoint.resume_mode != config::ResumeMode::kRecover)
        floor += " " + config::override_text("checkpoint.resume_mode", "recover");
      if (policy != config::OnConfigChange::kOverride)
        floor += " " + on_config_change(config::OnConfigChange::kOverride);
    }
    const int64_t end = plan_.schedule_start + *plan_.config.lr_scheduler.total_steps;
    const int64_t last = config_.training.steps;
    return fmt::format(
        "the learning-rate curve ends at step {} with a rate of 0, so steps {} to training.steps = {} would "
        "learn nothing: start with {} for a curve that ends with the run, or with {} for a floor",
        end, std::max(step_, end) + 1, last,
        config::override_text("lr_scheduler.total_steps", std::to_string(last - plan_.schedule_start)),
        floor);
  }

  void require_learning_steps() {
    std::ranges::move(optim::curve_cuts(plan_.config.lr_scheduler, config_.training.steps),
                      std::back_inserter(plan_.warnings));
    const std::optional<double> floor = floor_after_curve(plan_);
    if (floor == 0) throw_config("{}", explain_zero_rate(config_.checkpoint.on_config_change));
    if (floor)
      plan_.warnings.push_back(fmt::format(
          "the learning-rate curve ends at step {}: the steps after it train with lr = {}",
          plan_.schedule_start + *plan_.config.lr_scheduler.total_steps, plan_.config.optimizer.lr * *floor));
  }

  // The order of the data stays that of the saved seed, unless another one was asked for.
  void keep_seed() {
    if (!loads(checkpoint::kLoaderComponent) ||
        (config_.debug.seed && config_.checkpoint.on_config_change != config::OnConfigChange::kKeep))
      return;
    if (const auto seed = stored_number<uint64_t>(kSeed, 0)) {
      plan_.seed = *seed;
      set_setting(plan_.settings, kSeed, std::to_string(*seed));
    }
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    plan_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  const config::ResolvedConfig& resolved_;
  const config::JobConfig& config_;
  const JobContext& job_;
  const ResumeRequest* request_;
  const config::OnConfigChange policy_;
  int64_t step_ = 0;  // updates done, in this run's count
  ResumePlan plan_;
};

}  // namespace

config::ResolvedConfig followed_config(const config::ResolvedConfig& resolved,
                                       const config::JobConfig& followed) {
  config::ResolvedConfig result = resolved;
  result.config = followed;
  const config::TextTable configured = config::config_entries(resolved.config);
  for (const auto& entry : config::config_entries(followed))
    if (std::ranges::find(configured, entry) == configured.end())
      result.origins[entry.first] = "saved in the checkpoint";
  return result;
}

double learning_rate(const ResumePlan& plan, int64_t step) {
  const optim::LrSchedule schedule(plan.config.lr_scheduler, plan.config.training.steps);
  return plan.config.optimizer.lr * schedule.factor(step - 1 - plan.schedule_start);
}

ResumePlan fresh_plan(const config::ResolvedConfig& resolved, const JobContext& job) {
  return Planner(resolved, job, nullptr).run();
}

ResumePlan resume_plan(const config::ResolvedConfig& resolved, const JobContext& job,
                       const ResumeRequest& request) {
  return Planner(resolved, job, &request).run();
}

}  // namespace hyperion::checkpointing
