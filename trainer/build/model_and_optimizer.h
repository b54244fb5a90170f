// Builds the job's sharded model, its schedule and its optimizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/transformer.h"
#include "parallel/comm/process_group.h"
#include "parallel/comm/streamed_exchange.h"
#include "parallel/fsdp/fsdp.h"
#include "parallel/fsdp/replica_audit.h"
#include "trainer/build/float8_conversion.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/job_config.h"
#include "trainer/engine/schedule.h"
#include "trainer/engine/tied_table.h"
#include "trainer/optim/ema.h"
#include "trainer/optim/optimizer.h"

namespace hyperion::trainer {

struct ModelAndOptimizer {
  std::unique_ptr<parallel::StreamedExchange> tensor_exchange, context_exchange;  // GPU only
  std::unique_ptr<models::Transformer> transformer;
  Float8Setup float8;
  std::unique_ptr<parallel::FsdpContext> fsdp, experts;  // `experts` is null without expert parallelism
  std::unique_ptr<Stage> stage;
  std::unique_ptr<ScheduleRunner> schedule;               // runs the stage
  std::vector<parallel::ShardedParameterPtr> parameters;  // this rank's
  std::vector<checkpointing::ModelParameter> described;   // the whole model's
  std::vector<checkpointing::ExpertBias> biases;          // the whole model's
  std::unique_ptr<TiedTable> tied;                        // null unless two ranks have copies of a tied table
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Ema> ema;  // null if off
};

// Differences from a job that tests of sharding ask for.
struct ShardingVariation {
  bool pack_weights = true;
  std::optional<int64_t> shard_alignment{};          // none: the device's alignment
  parallel::Communicator* replicated_sum = nullptr;  // in place of the tensor parallel ranks' sum
  int64_t frozen_from = -1;  // every second parameter from this one on is frozen; -1: none
};

struct ModelContext {
  const parallel::Mesh& mesh;
  int rank;
  const parallel::ProcessGroups& groups;
  at::Device device;
  Float8Device float8{};
  const Pipeline* pipeline = nullptr;  // null: this rank runs all layers
  uint64_t seed = 0;                   // of random numbers that round optimizer states in bf16
  bool without_memory = false;         // masters, gradients and states are on the meta device
  ShardingVariation variation{};
};

// Splits the model's layers over the tensor parallel ranks, converts linear layers to FP8, shards the
// parameters (FSDP) and allocates this rank's shards, all as `config` says. The weights have no values yet:
// initialise_weights() or a load sets them. `ema` stays null, because the average starts from those values.
// Collective on a GPU, whose ranks it connects. The process's kernels must have been chosen (choose_kernels,
// choose_attention). Throws Error(kUsage) for an FP8 recipe that the device cannot run.
ModelAndOptimizer make_model_and_optimizer(const models::ModelArgs& args, const config::JobConfig& config,
                                           const ModelContext& context);

// Returns this rank's weights and optimizer states that other ranks replicate, for audit_replicas(): all of
// them if `replicate` has several ranks, else parameters that TP does not shard, a tied table with two
// copies, and the experts' biases. Empty if nothing is replicated.
std::vector<parallel::ReplicatedTensor> replicated_state(
    const std::vector<parallel::ShardedParameterPtr>& parameters, const optim::Optimizer& optimizer,
    const std::vector<models::ExpertBalancePtr>& balances, parallel::Communicator& shard,
    parallel::Communicator& replicate, parallel::Communicator* tensor, const TiedTable* tied);

// Copies the first stage's tied table, with its states and average, to the last stage. Call it after a load.
void copy_tied_table(const ModelAndOptimizer& model);

// Initialises this rank's shards. An element's value depends only on the seed, the parameter's name and the
// element's index in the global tensor, so every mesh starts from the same weights.
void initialise_weights(const ModelAndOptimizer& model, uint64_t seed);

// Returns FOLDER of HYPERION_DUMP_GRADIENTS=FOLDER, which asks for the gradients of step 1 as files, for
// tests against other trainers. Frozen parameters are left out.
std::optional<std::filesystem::path> gradient_dump_folder();
// Writes the gradients in the format that docs/debugging.md describes and scripts/join_gradients.py reads.
// Throws Error(kSaveFailed) if a file cannot be written.
void dump_gradients(const std::filesystem::path& folder, int rank, int ranks,
                    std::vector<parallel::ShardedParameterPtr> parameters);

}  // namespace hyperion::trainer
