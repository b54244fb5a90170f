// A small training job for tests: the real walk, sharding and optimizer on a model whose dimensions divide by
// nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/registry.h"
#include "parallel/process_group.h"
#include "tests/distributed/recording_communicator.h"
#include "trainer/float8_setup.h"
#include "trainer/optim/adam.h"
#include "trainer/unit_walk.h"

namespace hyperion {

struct TinyJob {
  const char* model = "llama3";
  MeshConfig mesh{};
  at::ScalarType compute = at::kFloat;
  ReshardPolicy reshard = ReshardPolicy::kDefault;
  BlockCheckpoint checkpoint = BlockCheckpoint::kNone;
  int64_t accumulation = 1;
  bool prefetch_forward = true;
  at::Device device = at::kCPU;
  bool offload = false;  // master weights, gradients and optimizer state on the host
  bool fake = false;     // no other ranks: a dry run of this one
  // FP8 linears: a recipe's name. The model's extents then are multiples of 16, the vocabulary apart.
  std::string float8{};
  bool float8_gather = false, float8_precompute = true, float8_emulate = true;
};

class TinyTraining {
 public:
  static constexpr int64_t kGlobalBatch = 12, kSeqLen = 8, kVocab = 17;

  TinyTraining(const TinyJob& job, const Environment& environment);
  // One step on global batch number `step` (the same sequences on every mesh): {global loss, gradient norm}.
  std::pair<double, double> step(int64_t step);

  ProcessGroups& groups() { return *groups_; }
  FsdpContext& fsdp() { return *fsdp_; }
  UnitWalk& walk() { return *walk_; }
  const Transformer& model() const { return model_; }
  const Adam& optimizer() const { return *optimizer_; }
  const Float8Setup& float8() const { return float8_; }
  // FP8 products of one microbatch, by the plan.
  int64_t float8_planned() { return float8_products(model_, float8_, walk_options_); }
  // What went over the shard group: dtypes by operation.
  const RecordingCommunicator& shard_traffic() const { return *shard_; }

 private:
  Microbatch microbatch(int64_t step, int64_t index) const;

  TinyJob job_;
  Mesh mesh_;
  int rank_;
  Transformer model_;
  Float8Setup float8_;
  WalkOptions walk_options_;
  std::unique_ptr<ProcessGroups> groups_;
  std::unique_ptr<RecordingCommunicator> shard_;
  std::unique_ptr<FsdpContext> fsdp_;
  std::unique_ptr<UnitWalk> walk_;
  std::vector<at::Tensor> grads_;
  std::unique_ptr<Adam> optimizer_;
};

// Losses and norms of `steps` steps, one after the other.
std::vector<double> train_tiny(const TinyJob& job, const Environment& environment, int64_t steps);

}  // namespace hyperion
