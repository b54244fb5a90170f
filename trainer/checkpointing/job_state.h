// Describes the state of a training job for checkpoints: each part that can be saved and loaded alone is one
// StateComponent. Names, nesting and kinds of values are torchtitan v0.2.2's for the parts that it has.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/device/streams.h"
#include "checkpoint/state.h"
#include "data/loader.h"
#include "models/parts/experts/moe.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/optim/ema.h"
#include "trainer/optim/optimizer.h"

namespace hyperion::checkpointing {

// Both throw Error(kBug) for a type that no state has.
checkpoint::Dtype dtype_of(at::ScalarType type);
at::ScalarType scalar_type(checkpoint::Dtype dtype);

struct TrainState {
  int64_t step = 0;                                             // updates done
  int64_t tokens_seen = 0;                                      // by all ranks
  double last_loss = std::numeric_limits<double>::quiet_NaN();  // loss of the last logged step
  int64_t last_loss_step = 0;                                   // the last logged step; 0 if unknown
  // These count steps whose update was left out (trainer/engine/finite_guard.h); they are saved only if there
  // are any.
  int64_t skipped_steps = 0;                // since the beginning
  std::vector<int64_t> recently_skipped{};  // of the last steps
  std::vector<double> gradient_norms{};     // of the last steps
};

// A parameter of the model. Every rank describes all parameters; those of other pipeline stages have no data.
struct ModelParameter {
  std::shared_ptr<const Parameter> parameter;
  Placement placement;
  at::ScalarType dtype = at::kFloat;  // dtype of master and average
  // If placement.is_local, `sharded` is this rank's shard and `index` its index among this rank's parameters.
  parallel::ShardedParameterPtr sharded{};
  size_t index = 0;
};

// The expert bias of a block, replicated on all ranks of its stage. Every rank describes all biases.
struct ExpertBias {
  models::ExpertBalancePtr balance;
  Placement placement;
};

// Stores the masters and the experts' biases under their own names at the root.
class ModelState : public checkpoint::StateComponent {
 public:
  explicit ModelState(std::vector<ModelParameter> parameters, std::vector<ExpertBias> biases = {})
      : parameters_(std::move(parameters)), biases_(std::move(biases)) {}
  std::string name() const override { return std::string(checkpoint::kModelComponent); }
  std::vector<checkpoint::TensorState> tensors() override;
  // Refreshes the compute-dtype copies from the loaded masters.
  void load(const Find&) override;

 private:
  std::vector<ModelParameter> parameters_;
  std::vector<ExpertBias> biases_;
};

// Stores, for each trainable parameter, its states as optimizer.state.<fqn>.<name>, the step count as .step,
// and its settings as optimizer.param_groups.<fqn>.*.
class OptimizerState : public checkpoint::StateComponent {
 public:
  // `undivided` is the placement of the step counter, which is replicated on every rank. Every save takes the
  // learning rates from `plan` and `state`.
  OptimizerState(const optim::Optimizer& optimizer, std::vector<ModelParameter> parameters,
                 Placement undivided, const ResumePlan& plan, const TrainState& state);
  std::string name() const override { return std::string(checkpoint::kOptimizerComponent); }
  std::vector<checkpoint::TensorState> tensors() override;
  std::vector<checkpoint::ObjectState> objects() override;
  std::vector<std::string> required_objects() override { return {}; }  // the configuration says the same

 private:
  const optim::Optimizer& optimizer_;
  std::vector<ModelParameter> parameters_;
  Placement undivided_;
  const ResumePlan& plan_;
  const TrainState& state_;
};

// Stores the position on the learning-rate curve, and the settings that a resumed job must follow.
class SchedulerState : public checkpoint::StateComponent {
 public:
  SchedulerState(const ResumePlan& plan, const TrainState& state) : plan_(plan), state_(state) {}
  std::string name() const override { return std::string(checkpoint::kSchedulerComponent); }
  std::vector<checkpoint::ObjectState> objects() override;
  std::vector<std::string> required_objects() override { return {name() + ".last_epoch"}; }

 private:
  const ResumePlan& plan_;
  const TrainState& state_;
};

class LoaderComponent : public checkpoint::StateComponent {
 public:
  explicit LoaderComponent(data::DataLoader& loader) : loader_(loader) {}
  std::string name() const override { return std::string(checkpoint::kLoaderComponent); }
  std::vector<checkpoint::ObjectState> objects() override;
  std::vector<std::string> required_objects() override { return {}; }  // other programs have none
  void load(const Find& find) override;

 private:
  data::DataLoader& loader_;
};

class TrainStateComponent : public checkpoint::StateComponent {
 public:
  // `config` is the job's configuration, with which a resume compares its own.
  TrainStateComponent(TrainState& state, int64_t batch_ranks, checkpoint::Object config)
      : state_(state), batch_ranks_(batch_ranks), config_(std::move(config)) {}
  std::string name() const override { return std::string(checkpoint::kTrainStateComponent); }
  std::vector<checkpoint::ObjectState> objects() override;
  std::vector<std::string> required_objects() override { return {std::string(checkpoint::kStepKey)}; }
  void load(const Find& find) override;

 private:
  TrainState& state_;
  int64_t batch_ranks_;
  checkpoint::Object config_;
};

// Stores the state of torch's random number generators of each rank. They are seeded by (seed, step, rank) if
// no state is loaded, or one of a different number of ranks.
class RngState : public checkpoint::StateComponent {
 public:
  RngState(at::Device device, int rank, int world_size, uint64_t seed, const TrainState& state)
      : device_(device), rank_(rank), world_size_(world_size), seed_(seed), state_(state) {
    reseed();
  }
  std::string name() const override { return std::string(checkpoint::kRngComponent); }
  std::vector<checkpoint::ObjectState> objects() override;
  std::vector<std::string> required_objects() override { return {}; }
  void load(const Find& find) override;

 private:
  void reseed();  // by (seed, step, rank)
  // Returns torch's generators with the names of their states in a checkpoint.
  std::vector<std::pair<const char*, at::Generator>> generators() const;

  at::Device device_;
  int rank_, world_size_;
  uint64_t seed_;
  const TrainState& state_;
};

class EmaState : public checkpoint::StateComponent {
 public:
  EmaState(optim::Ema& ema, std::vector<ModelParameter> parameters)
      : ema_(ema), parameters_(std::move(parameters)) {}
  std::string name() const override { return std::string(checkpoint::kEmaComponent); }
  std::vector<checkpoint::TensorState> tensors() override;
  void wait_for_update() override { ema_.wait_for_update(); }

 private:
  optim::Ema& ema_;
  std::vector<ModelParameter> parameters_;
};

// Copies between device and pinned host memory on its own stream. State in host memory is copied by memcpy.
class DeviceMover : public checkpoint::MemoryMover {
 public:
  explicit DeviceMover(at::Device device)
      : device_(device), stream_(DeviceStream::from_pool(device, /*high_priority=*/false)) {}
  void prepare() override { ready_.record(DeviceStream::current(device_)); }
  void to_host(void* host, const checkpoint::TensorState& from, uint64_t offset, uint64_t bytes) override;
  void from_host(const checkpoint::TensorState& to, uint64_t offset, const void* host,
                 uint64_t bytes) override;
  void finish() override { stream_.synchronize(); }
  std::shared_ptr<std::byte> allocate(uint64_t bytes) override;
  bool allocates_pinned() const override { return !device_.is_cpu(); }

 private:
  at::Device device_;
  DeviceStream stream_;
  DeviceEvent ready_;
};

}  // namespace hyperion::checkpointing
