// Choices about saves that the configuration and the saver share.
#pragma once

#include <array>
#include <string_view>

#include "base/choice.h"

namespace hyperion::checkpoint {

enum class AsyncMode {
  kDisabled,    // a save returns when the checkpoint is durable
  kAsync,       // ... when its data has been copied
  kOverlapped,  // ... at once; the copy must be joined before anything changes the state
};
constexpr auto choices(AsyncMode) {
  return choice_list<AsyncMode>({{AsyncMode::kDisabled, "disabled"},
                                 {AsyncMode::kAsync, "async"},
                                 {AsyncMode::kOverlapped, "async_with_pinned_mem"}});
}

enum class Writers {
  kAll,         // replicas share the work: every rank writes, in parallel
  kOneReplica,  // only the first replica writes: fewer and larger files
};

// The format of a model's weights.
enum class WeightFormat { kDcp, kSafetensors };
constexpr auto choices(WeightFormat) {
  return choice_list<WeightFormat>(
      {{WeightFormat::kDcp, "dcp"}, {WeightFormat::kSafetensors, "safetensors"}});
}

// The components of a job's state, each of which can be saved and loaded alone. On disk a name begins with
// its component; the model's names are at the root.
inline constexpr std::string_view kModelComponent = "model";
inline constexpr std::string_view kOptimizerComponent = "optimizer";
inline constexpr std::string_view kSchedulerComponent = "lr_scheduler";
inline constexpr std::string_view kLoaderComponent = "dataloader";
inline constexpr std::string_view kTrainStateComponent = "train_state";
inline constexpr std::string_view kRngComponent = "rng";
inline constexpr std::string_view kEmaComponent = "ema";
inline constexpr std::array kStateComponents = {kModelComponent,  kOptimizerComponent,  kSchedulerComponent,
                                                kLoaderComponent, kTrainStateComponent, kRngComponent,
                                                kEmaComponent};

}  // namespace hyperion::checkpoint
