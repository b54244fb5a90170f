// The state of a training job as the checkpoint sees it: one flat tree of named tensors and objects. Every
// component with state describes it through StateComponent; the checkpoint knows no model and no optimizer
// by type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/placement.h"
#include "checkpoint/types/choices.h"
#include "checkpoint/types/dtype.h"
#include "checkpoint/types/index.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

using hyperion::Placement;

// This rank's local shard of a tensor in memory, contiguous and row-major.
struct TensorState {
  std::string key;  // on disk: "layers.0.attention.wq.weight", "optimizer.state.norm.weight.exp_avg"
  KeyPath path;     // in the nested state: {"optimizer", "state.norm.weight.exp_avg"}
  Dtype dtype = Dtype::kFloat32;
  Dims shape;  // global
  Placement placement;
  void* data = nullptr;    // live host or device memory; null if this rank has no elements
  bool on_device = false;  // `data` is device memory
  // Other names under which the tensor is saved (a tied head). Its data is written once per name, because
  // DCP has no links.
  std::vector<std::string> aliases;

  // This rank's part of the tensor; it may be empty. Throws Error(kBug) if a tensor of this shape cannot
  // have these cuts.
  Box box() const { return box_of(shape, placement.cuts); }
  uint64_t local_bytes() const;  // 0 unless placement.is_local
};

// A small value. It is equal on all ranks unless `per_rank`; then each rank has its own key.
struct ObjectState {
  std::string key;
  KeyPath path;
  Object value;
  bool per_rank = false;
};

// One component of a job's state that can be saved and loaded alone. name() is one of kStateComponents.
class StateComponent {
 public:
  virtual ~StateComponent() = default;
  virtual std::string name() const = 0;
  // The component's tensors. Their addresses, shapes, names and placements never change.
  virtual std::vector<TensorState> tensors() { return {}; }
  // Returns when nothing modifies the tensors any more. Called at every save.
  virtual void wait_for_update() {}
  // The component's current values. Called at every save.
  virtual std::vector<ObjectState> objects() { return {}; }
  // Restores values. Tensors have already been filled in place. `find` returns the object under a key of
  // the checkpoint, or null. Throws Error(kBadData) for invalid values.
  using Find = std::function<const Object*(const std::string& key)>;
  virtual void load(const Find&) {}
  // Keys whose absence is an error when the component is loaded; by default the keys of objects().
  virtual std::vector<std::string> required_objects();
};

// The component of a key: everything before the first dot if that is the name of a component other than the
// model, else kModelComponent.
std::string component_of(const std::string& key);

// Component names, a subset of kStateComponents.
using ComponentSet = std::set<std::string, std::less<>>;

// Keys of values that other components read, and key prefixes of parameters.
inline constexpr std::string_view kTrajectoryKey = "lr_scheduler.trajectory";
inline constexpr std::string_view kLoaderPositionKey = "dataloader.position";
inline constexpr std::string_view kLoaderRanksKey = "dataloader.world_size";    // torchtitan's
inline constexpr std::string_view kLoaderOfRankPrefix = "dataloader.dp_rank_";  // torchtitan's
inline constexpr std::string_view kStepKey = "train_state.step";
inline constexpr std::string_view kTokensOfRankKey = "train_state.ntokens_seen";
inline constexpr std::string_view kConfigKey = "train_state.config";
inline constexpr std::string_view kMomentsPrefix = "optimizer.state.";
inline constexpr std::string_view kParameterGroupPrefix = "optimizer.param_groups.";
inline constexpr std::string_view kEmaPrefix = "ema.";

// Copies bytes between host memory and the memory of tensors. The default is memcpy.
class MemoryMover {
 public:
  virtual ~MemoryMover() = default;
  // Called on the training thread before another thread copies: the copies wait for the work queued on the
  // device.
  virtual void prepare() {}
  // Asynchronous until finish(); the source must not change in between.
  virtual void to_host(void* host, const TensorState& from, uint64_t offset, uint64_t bytes);
  virtual void from_host(const TensorState& to, uint64_t offset, const void* host, uint64_t bytes);
  virtual void finish() {}
  // Allocates uninitialized host memory for fast copies (pinned if there is a device). The deleter frees
  // it. Throws std::bad_alloc.
  virtual std::shared_ptr<std::byte> allocate(uint64_t bytes);
  // Returns whether allocate() returns pinned memory, all of whose pages are populated from the start.
  virtual bool allocates_pinned() const { return false; }
};

}  // namespace hyperion::checkpoint
