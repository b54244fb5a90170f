// The settings that shape the loss curve: which they are, and how checkpoints store them. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "models/args/model_args.h"
#include "trainer/config/job_config.h"
#include "trainer/config/option.h"

namespace hyperion::checkpointing {

// Settings with rules of their own.
inline constexpr const char* kTotalSteps = "lr_scheduler.total_steps";
inline constexpr const char* kStart = "lr_scheduler.start_step";  // no key of the configuration
inline constexpr const char* kSeed = "debug.seed";
inline constexpr const char* kGlobalBatch = "training.global_batch_size";
inline constexpr std::string_view kRamp = "training.global_batch_ramp",
                                  kRampUnit = "training.global_batch_ramp_unit", kNoRamp = "[]";
inline constexpr std::string_view kDecayOfNorms = "optimizer.decay_norms_and_biases",
                                  kGroups = "optimizer.groups", kStateDtype = "optimizer.state_dtype",
                                  kZLoss = "training.z_loss";
inline constexpr std::string_view kLengthKey = "training.seq_len", kShuffleKey = "training.shuffle";
inline constexpr const char* kSources = "training.sources";  // shares_text()
inline constexpr std::string_view kRouterLosses[] = {
    "model.router_z_loss_coeff", "model.sequence_aux_loss_coeff", "model.global_aux_loss_coeff"};
inline constexpr const char* kForcedBalance = "model.force_load_balance";  // debug.moe_force_load_balance

// The settings that shape the loss curve, as every checkpoint stores them: key and text, in a fixed order.
using CurveSettings = config::TextTable;
// Returns the text of `key`; null if the key is missing.
const std::string* find_setting(const CurveSettings& settings, std::string_view key);
// Replaces the text of an existing key.
void set_setting(CurveSettings& settings, std::string_view key, std::string text);

// Returns the model's settings that shapes do not show ("model.rope_theta").
CurveSettings model_settings(const models::ModelArgs& model);

// A key of the configuration that shapes the curve, and the component that the setting belongs to: a setting
// is compared when its component is loaded. Checkpoints store it while `feature` is on; null: always.
struct Setting {
  std::string_view key, component;
  const config::Feature* feature = nullptr;
};
std::span<const Setting> curve_settings();

// Returns the component of any setting; "" for facts that are not compared as settings: the curve's length
// and start, and the data.
std::string_view component_of_setting(std::string_view key);

}  // namespace hyperion::checkpointing
