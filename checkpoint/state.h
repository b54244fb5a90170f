// The state of a training job as the checkpoint sees it: one flat tree of named tensors and objects. Every
// component that has state describes it through StateComponent; the checkpoint knows no model and no
// optimizer by type.
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

// A tensor in memory: this rank's local shard of it, contiguous and row-major.
struct TensorState {
  std::string key;  // on disk: "layers.0.attention.wq.weight", "optimizer.state.norm.weight.exp_avg"
  KeyPath path;     // in the nested state: {"optimizer", "state.norm.weight.exp_avg"}
  Dtype dtype = Dtype::kFloat32;
  Dims shape;  // global
  Placement placement;
  void* data = nullptr;    // live memory, of the host or the device; null when this rank has no elements
  bool on_device = false;  // `data` is device memory
  // Other names the same tensor is saved under (a tied head); its data is written again under each, because
  // DCP has no links.
  std::vector<std::string> aliases;

  // This rank's part of the tensor, which may be without elements. Throws Error(kBug) for cuts that a tensor
  // of this shape cannot have.
  Box box() const { return box_of(shape, placement.cuts); }
  uint64_t local_bytes() const;  // 0 for a tensor that is not here
};

// A small value. Equal on all ranks unless `per_rank`, in which case each rank has a key of its own.
struct ObjectState {
  std::string key;
  KeyPath path;
  Object value;
  bool per_rank = false;
};

// One part of a job's state that can be saved and loaded alone; name() is one of kStateComponents.
class StateComponent {
 public:
  virtual ~StateComponent() = default;
  virtual std::string name() const = 0;
  // The component's tensors, whose addresses, shapes, names and placements stay the same.
  virtual std::vector<TensorState> tensors() { return {}; }
  // Returns when nothing changes the tensors any more. Called at every save.
  virtual void wait_for_update() {}
  // Its values as they are now. Called at every save.
  virtual std::vector<ObjectState> objects() { return {}; }
  // Takes values back. Tensors have been filled in place before. `find` returns the object under a key of the
  // checkpoint, or nothing. Throws Error(kBadData) for values that cannot be right.
  using Find = std::function<const Object*(const std::string& key)>;
  virtual void load(const Find&) {}
  // Keys whose absence is an error when the component is loaded; by default those of objects().
  virtual std::vector<std::string> required_objects();
};

// The name under which a key belongs to a component: everything before the first dot when that is the name of
// one of the other components, else kModelComponent.
std::string component_of(const std::string& key);

// Names of components: a subset of kStateComponents.
using ComponentSet = std::set<std::string, std::less<>>;

// Keys of values that others than their component read, and what keys of parameters begin with.
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

// Moves bytes between host memory and the memory of tensors. The default is memcpy.
class MemoryMover {
 public:
  virtual ~MemoryMover() = default;
  // On the training thread, before another thread copies: the copies wait for what is queued on the device.
  virtual void prepare() {}
  // Asynchronous until finish(); the source must not change in between.
  virtual void to_host(void* host, const TensorState& from, uint64_t offset, uint64_t bytes);
  virtual void from_host(const TensorState& to, uint64_t offset, const void* host, uint64_t bytes);
  virtual void finish() {}
  // Host memory that copies are fast from (pinned where there is a device), not initialised. Freed by the
  // deleter. Throws std::bad_alloc.
  virtual std::shared_ptr<std::byte> allocate(uint64_t bytes);
  // Whether that is pinned: then all its pages have memory from the start.
  virtual bool allocates_pinned() const { return false; }
};

}  // namespace hyperion::checkpoint
