// Estimates a lower bound of a job's memory before anything is allocated. Pure.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "models/args/model_args.h"
#include "models/description.h"
#include "parallel/pipeline/stage_memory.h"
#include "trainer/config/load.h"

namespace hyperion::trainer {

// NCCL communicators of a rank by the traffic of their groups (parallel/comm/communicator_memory.h).
struct Communicators {
  int collectives = 0, exchanges = 0, stages = 0;
  int count() const { return collectives + exchanges + stages; }
};

// Bytes of one rank, as doubles so that no product overflows. Only memory that every layout holds at the same
// time counts, so a job whose estimate fits may still run out of memory.
struct JobSize {
  double weights = 0;      // masters and compute-dtype copies
  double optimizer = 0;    // optimizer states
  double gradients = 0;    // sharded gradients
  double sums = 0;         // unsharded gradients, summed over the microbatches of a step
  double reduced = 0;      // sharded gradients that a GPU holds in addition to `sums`
  double gathered = 0;     // gathered weights: of pipeline stages (for several microbatches) or of a block
  double averages = 0;     // EMA
  double exchanges = 0;    // buffers in which Muon exchanges matrices with their owners
  double update = 0;       // what Muon's update needs besides; no other moment has it
  double activations = 0;  // most at once: block inputs or deferred wgrad inputs, and a chunk of logits
  double expert_rows = 0;  // of `activations`: rows that ranks exchange, as many as the mean of the ranks
  double freed = 0;        // of `activations`: freed by the backward that makes `reduced`
  double sends = 0;        // activations and gradients on their way to other pipeline stages, on a GPU
  double repeated = 0;     // keys and values repeated for all heads, for GPU kernels without GQA
  double attention = 0;    // scratch per thread that computes attention on a CPU
  double attention_threads = 1;   // most threads that can compute attention in a layer
  double save_pool = 0;           // copy of the state for background saves, in host memory
  Communicators communicators{};  // not counted: their bytes are not known
  double tokens = 0;              // tokens of a step's microbatches, in host memory
  double description = 0;         // names and shapes, in host memory
  bool mostly_tables = false;     // embedding and head hold more than half of the parameters

  double states() const { return weights + optimizer + gradients; }
  // The bytes that every device needs: `sends`, `repeated`, `attention` and `update` are left out.
  double total() const {
    return weights + optimizer + averages + exchanges + sums + gathered + activations +
           std::max(0.0, reduced - freed);
  }
};

// The part of the model that one pipeline rank holds.
struct PipelineShare {
  struct Stage {
    int64_t first_block = 0, end_block = 0;
    bool embedding = false, head = false;
  };
  std::vector<Stage> stages{};
  // A Moment is what the rank holds at one moment of a step, in addition to its state.
  struct Moment {
    std::vector<parallel::StageWeights> weights{};  // of `stages`
    int64_t kept_inputs = 0;      // saved inputs of blocks and head, over all microbatches in flight
    int64_t deferred_blocks = 0;  // blocks whose wgrad is deferred
    bool runs() const { return kept_inputs + deferred_blocks > 0; }  // has microbatches in flight
  };
  std::vector<Moment> moments{};  // not empty; the largest one counts
  bool has_head() const { return std::ranges::any_of(stages, &Stage::head); }
};
// Parameters of a stage on one of `tensor` tensor parallel ranks.
double parameters_of(const models::ModelArgs& model, const PipelineShare::Stage& stage, double tensor = 1);

// Elements per token that a block's deferred wgrad reads, on one of `tensor` tensor parallel ranks. A
// recomputed block (`runs_again`) keeps the all-gathered inputs of its column layers.
double deferred_elements(const models::BlockDescription& block, double tensor, bool runs_again);

// Bytes of the names, shapes and tensor objects of a layer, without tensor data.
constexpr double kDescriptionOfLayer = 4096;

// `shards` is the FSDP shard degree, `microbatches` the number per step. If `share` is null, the model is
// split evenly over the pipeline's ranks.
JobSize job_size(const config::JobConfig& config, const models::ModelDescription& model, int64_t shards,
                 int64_t microbatches, const PipelineShare* share = nullptr);
inline JobSize job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                        int64_t microbatches, const PipelineShare* share = nullptr) {
  return job_size(config, models::describe_model(model), shards, microbatches, share);
}
// The estimate of the rank that needs the most memory. `shares` has one entry per pipeline rank, none without
// a pipeline.
JobSize largest_job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                         int64_t microbatches, std::span<const PipelineShare> shares);

}  // namespace hyperion::trainer
