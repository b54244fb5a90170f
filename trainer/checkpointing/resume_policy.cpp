#include "trainer/checkpointing/resume_policy.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/printable.h"
#include "trainer/config/schema.h"
#include "trainer/optim/lr_schedule.h"

namespace hyperion::checkpointing {
namespace {

std::string on_config_change(config::OnConfigChange policy) {
  return config::override_text("checkpoint.on_config_change", std::string(text_of(policy)));
}

// A run and, unless it begins at step 0, what it resumes from.
class Planner {
 public:
  Planner(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts, const ResumeRequest* request)
      : resolved_(resolved), config_(resolved.config), facts_(facts), request_(request) {
    plan_.config = config_;
    plan_.seed = facts.seed;
    plan_.trajectory = configured_trajectory(resolved, facts);
    plan_.config.lr_scheduler.total_steps = config_.lr_scheduler.total_steps.value_or(config_.training.steps);
    if (request == nullptr) return;
    if (loads(checkpoint::kTrainStateComponent)) step_ = request->step;
    if (resume_mode(config_, request->source) == config::ResumeMode::kRecover)
      policy_ = config_.checkpoint.on_config_change;
  }

  ResumePlan run() {
    if (request_ != nullptr) {
      place_curve();
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

  // Of the checkpoint's trajectory.
  template <typename Number>
  std::optional<Number> stored_number(const char* key, Number minimum) const {
    const std::string* text = request_->stored ? find_setting(*request_->stored, key) : nullptr;
    if (text == nullptr) return std::nullopt;
    Number number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || end != text->data() + text->size() || number < minimum)
      throw_data("the checkpoint's {} is \"{}\", expected a whole number of at least {}", key,
                 printable(*text), minimum);
    return number;
  }

  // Length and start of the curve: the checkpoint's, unless the curve is not loaded.
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
      plan_.schedule_start = stored_number<int64_t>(kStartSetting, 0).value_or(0);
      const int64_t stored = stored_number<int64_t>(kTotalStepsSetting, 1).value_or(*total);
      if (stored != *total && configured)
        note("lr_scheduler.total_steps: the curve changes from {} to {}", stored, counted(*total, "step"));
      else if (stored != *total)
        note(
            "the learning-rate curve keeps its {} from the checkpoint, whatever training.steps = {} is; set "
            "lr_scheduler.total_steps to change it",
            counted(stored, "step"), config_.training.steps);
      if (!configured) total = stored;
    }
    set_setting(plan_.trajectory, kTotalStepsSetting, std::to_string(*total));
    set_setting(plan_.trajectory, kStartSetting, std::to_string(plan_.schedule_start));
  }

  void compare_settings() {
    const std::string data = data_difference();
    const std::vector<SettingChange> changes =
        request_->stored
            ? changed_settings(resolved_, plan_.trajectory, *request_->stored, request_->components)
            : std::vector<SettingChange>();
    if (policy_ == config::OnConfigChange::kError && !changes.empty())
      throw_config("The checkpoint at step {} was saved with other settings:{}\n{}{}{}", request_->step,
                   describe_changes(resolved_, changes), ways_out(changes), data.empty() ? "" : "\n", data);
    if (!data.empty()) throw_config("{}", data);
    const bool keep = policy_ == config::OnConfigChange::kKeep;
    if (keep)
      if (const std::vector<SettingChange> impossible = keep_saved_values(changes, plan_);
          !impossible.empty())
        throw_config(
            "The checkpoint at step {} was saved with other settings that {} cannot bring back:{}\nConfigure "
            "the saved values, or start with {} to resume with the configured ones.",
            request_->step, on_config_change(policy_), describe_changes(resolved_, impossible),
            on_config_change(config::OnConfigChange::kOverride));
    for (const SettingChange& change : changes) {
      const std::string key = change.configuration_key();
      if (keep)
        note("{}: keeping {} from the checkpoint (configured: {})", key, change.saved, change.configured);
      else
        note("{}: taking {} from the configuration (saved: {})", key, change.configured, change.saved);
    }
  }

  // The loader's position means something in the same data alone. "" when they are.
  std::string data_difference() const {
    if (!loads(checkpoint::kLoaderComponent) || request_->data.value_or(facts_.data) == facts_.data)
      return "";
    const auto place = [](const std::string& where, uint64_t fingerprint) {
      return fmt::format("{} (fingerprint {:08x})", where.empty() ? "data that it does not name" : where,
                         fingerprint >> 32);
    };
    return fmt::format(
        "The checkpoint at step {} resumes in other data than this job's: {} there, {} here, chosen by "
        "training.dataset_path ({}) and training.text_field ({}); file names, sizes or the tokenizer differ. "
        "Configure the data that it was trained on; or, to begin these from their beginning, {}.",
        request_->step, place(request_->data_place, *request_->data), place(facts_.data_place, facts_.data),
        resolved_.origin("training.dataset_path"), resolved_.origin("training.text_field"),
        leave_out_remedy(config_, request_->source, checkpoint::kLoaderComponent));
  }

  // Puts the saved values into the plan; returns those that a configuration cannot bring back.
  std::vector<SettingChange> keep_saved_values(const std::vector<SettingChange>& changes,
                                               ResumePlan& plan) const {
    std::vector<SettingChange> impossible;
    for (const SettingChange& change : changes) {
      set_setting(plan.trajectory, change.key, change.saved);
      if (!take_saved_value(change, facts_, plan.config)) impossible.push_back(change);
    }
    return impossible;
  }

  // Those values of on_config_change with which this resume passes, or what is in the way then.
  std::string ways_out(const std::vector<SettingChange>& changes) const {
    ResumePlan kept = plan_;
    const bool can_keep = keep_saved_values(changes, kept).empty();
    std::vector<std::string> ways;
    if (can_keep && floor_after_curve(kept) != 0)
      ways.push_back(on_config_change(config::OnConfigChange::kKeep) + " to resume with the saved values");
    const std::string override_values = on_config_change(config::OnConfigChange::kOverride);
    if (floor_after_curve(plan_) != 0)
      ways.push_back(override_values + " to resume with the configured ones");
    return ways.empty() ? fmt::format("Start with {}, and mend what is in the way then: {}", override_values,
                                      explain_zero_rate(config::OnConfigChange::kOverride))
                        : fmt::format("Start with {}.", fmt::join(ways, ", or with "));
  }

  // The factor of the rate of steps that the plan trains after its curve; none when it trains none there.
  std::optional<double> floor_after_curve(const ResumePlan& plan) const {
    const config::JobConfig& config = plan.config;
    const int64_t last = config.training.steps, of_curve = last - plan.schedule_start;
    if (last <= step_ || of_curve <= *config.lr_scheduler.total_steps || config.optimizer.lr == 0) return {};
    return optim::LrSchedule(config.lr_scheduler, last).factor(of_curve - 1);
  }

  // Of a start with `policy` that would train with a rate of 0 because its curve has ended, with the ways
  // out.
  std::string explain_zero_rate(config::OnConfigChange policy) const {
    std::string floor = config::override_text("lr_scheduler.min_lr_factor", "0.1");
    // Where the stored floor is compared, the changed one needs its permission.
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
    if (const auto seed = stored_number<uint64_t>(kSeedSetting, 0)) {
      plan_.seed = *seed;
      set_setting(plan_.trajectory, kSeedSetting, std::to_string(*seed));
    }
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    plan_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  const config::ResolvedConfig& resolved_;
  const config::JobConfig& config_;
  const TrajectoryFacts& facts_;
  const ResumeRequest* request_;
  config::OnConfigChange policy_ = config::OnConfigChange::kOverride;  // recover alone compares
  int64_t step_ = 0;                                                   // updates done, in this run's count
  ResumePlan plan_;
};

}  // namespace

double learning_rate(const ResumePlan& plan, int64_t step) {
  const optim::LrSchedule schedule(plan.config.lr_scheduler, plan.config.training.steps);
  return plan.config.optimizer.lr * schedule.factor(step - 1 - plan.schedule_start);
}

ResumePlan fresh_plan(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts) {
  return Planner(resolved, facts, nullptr).run();
}

ResumePlan resume_plan(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts,
                       const ResumeRequest& request) {
  return Planner(resolved, facts, &request).run();
}

}  // namespace hyperion::checkpointing
