// The settings that shape the loss curve, as every checkpoint holds them: what a resumed job is compared
// with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state.h"
#include "checkpoint/types/object.h"
#include "models/flavors/model_args.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

// Key and text of each setting, in a fixed order.
using Trajectory = config::TextTable;
// The text of `key`; null when the trajectory does not have it.
const std::string* find_setting(const Trajectory& trajectory, std::string_view key);
// Replaces that of a key that it has.
void set_setting(Trajectory& trajectory, std::string_view key, std::string text);

// Settings with rules of their own in resume_policy.h.
inline constexpr const char* kTotalStepsSetting = "lr_scheduler.total_steps";
inline constexpr const char* kStartSetting = "lr_scheduler.start_step";  // no key of the configuration
inline constexpr const char* kSeedSetting = "debug.seed";

struct TrajectoryFacts {  // what the configuration alone does not say
  int64_t data_parallel_degree = 1;
  int64_t global_batch_size = 0;  // sequences of a step
  uint64_t seed = 0;              // debug.seed, or the one rank 0 drew
  uint64_t data = 0;              // DataLoader::fingerprint()
  std::string data_place{};       // where the documents are, for messages
  models::ModelArgs model;
};
// As the configuration says.
Trajectory configured_trajectory(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts);

struct SettingChange {
  std::string key, saved, configured;
  std::string configuration_key() const;  // the key of the configuration that says the same
};
// Settings that belong to one of `components` and have another value than the stored one.
std::vector<SettingChange> changed_settings(const config::ResolvedConfig& resolved,
                                            const Trajectory& configured, const Trajectory& stored,
                                            const checkpoint::ComponentSet& components);
// A line for each, after a line break: both values, and where the configured one was set.
std::string describe_changes(const config::ResolvedConfig& resolved,
                             const std::vector<SettingChange>& changes);
// Puts the saved value into the configuration. False for what a configuration cannot bring back.
bool take_saved_value(const SettingChange& change, const TrajectoryFacts& facts, config::JobConfig& config);

// A table as a checkpoint stores it: a dict of texts. `where` is for the message of Error(kBadData).
checkpoint::Object to_object(const config::TextTable& table);
config::TextTable text_table(const checkpoint::Object& object, const std::string& where);

}  // namespace hyperion::checkpointing
