// What a job trains: the model, sharded over the ranks, and what updates it.
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
  std::unique_ptr<parallel::StreamedExchange> tensor_exchange, context_exchange;  // of the layers, on a GPU
  std::unique_ptr<models::Transformer> transformer;
  Float8Setup float8;
  std::unique_ptr<parallel::FsdpContext> fsdp, experts;  // experts: null without expert parallelism
  std::unique_ptr<Stage> stage;
  std::unique_ptr<ScheduleRunner> schedule;               // of the stage
  std::vector<parallel::ShardedParameterPtr> parameters;  // that this rank holds
  std::vector<checkpointing::ModelParameter> described;   // all of the model
  std::vector<checkpointing::ExpertBias> biases;          // the same
  std::unique_ptr<TiedTable> tied;                        // null: nothing that two ranks have copies of
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Ema> ema;  // null when off
};

// What tests of sharding have otherwise than a job.
struct ShardingVariation {
  bool pack_weights = true;
  std::optional<int64_t> shard_alignment{};          // none: the device's
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
  bool without_memory = false;         // masters, gradients and states have shapes only (the meta device)
  ShardingVariation variation{};
};

// Divides the model's layers over the tensor parallel ranks, converts the linears to FP8 and shards what is
// left of them, as `config` says, and allocates this rank's part, without values: initialise_weights() or a
// load gives them. Makes no moving average, which starts from them. Collective where the device is a GPU,
// whose ranks it connects. The process's kernels are chosen before it (choose_kernels, choose_attention).
// Throws Error(kUsage) for an FP8 recipe that the device cannot run.
ModelAndOptimizer make_model_and_optimizer(const models::ModelArgs& args, const config::JobConfig& config,
                                           const ModelContext& context);

// What this rank holds of weights and optimizer state that other ranks hold too, for audit_replicas(): all of
// it where `replicate` has several ranks, what tensor parallel ranks do not divide, a tied table of which two
// ranks have copies, and the experts' biases, which each rank has. Empty without such ranks.
std::vector<parallel::ReplicatedTensor> replicated_state(
    const std::vector<parallel::ShardedParameterPtr>& parameters, const optim::Optimizer& optimizer,
    const std::vector<models::ExpertBalancePtr>& balances, parallel::Communicator& shard,
    parallel::Communicator& replicate, parallel::Communicator* tensor, const TiedTable* tied);

// After a load: a copy of a tied table, with its states and average, becomes what the first stage has loaded.
void copy_tied_table(const ModelAndOptimizer& model);

// The initial values of this rank's part. The value of an element depends on the seed, the parameter's name
// and the element's place in the whole tensor alone, so that every mesh starts from the same weights.
void initialise_weights(const ModelAndOptimizer& model, uint64_t seed);

// HYPERION_DUMP_GRADIENTS=FOLDER: the gradients of step 1 as files, for tests against other trainers; without
// frozen parameters.
std::optional<std::filesystem::path> gradient_dump_folder();
// Writes them there in the form that docs/debugging.md describes and scripts/join_gradients.py reads. Throws
// Error(kSaveFailed) when a file cannot be written.
void dump_gradients(const std::filesystem::path& folder, int rank, int ranks,
                    std::vector<parallel::ShardedParameterPtr> parameters);

}  // namespace hyperion::trainer
