// How much memory a job needs at the very least, before anything is allocated. Pure.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "models/args/model_args.h"
#include "models/description.h"
#include "trainer/config/load.h"

namespace hyperion::trainer {

// Bytes of one rank, in floating point so that no product overflows. Counts only what exists at the same time
// in every layout: a job that needs more than this may still not fit.
struct JobSize {
  double weights = 0;      // masters, and their copies in the compute dtype
  double optimizer = 0;    // its states
  double gradients = 0;    // of this rank's shards
  double sums = 0;         // of unsharded gradients over the microbatches of a step
  double gathered = 0;     // weights of pipeline stages, gathered for several microbatches, or of a block
  double averages = 0;     // EMA
  double activations = 0;  // kept at once: blocks' inputs or what weight gradients read, a chunk of logits
  double repeated = 0;     // keys and values for kernels of GPUs that take as many as there are heads
  double attention = 0;    // scratch of each thread that computes attention on a CPU
  double attention_threads = 1;  // that have work in every layer, at most
  double save_pool = 0;          // copy of the state for background saves, in host memory
  int communicators = 0;         // of NCCL, where the job is on GPUs; not known well enough to be counted
  double tokens = 0;             // of all microbatches of a step, in host memory
  double description = 0;        // names and shapes, in host memory
  bool mostly_tables = false;    // more than half of the parameters are the embedding's and the head's

  double states() const { return weights + optimizer + gradients; }
  // Of shards, or of several microbatches: on a GPU the sums become the shards' gradients.
  double all_gradients() const { return std::max(gradients, sums); }
  // On every device: without `repeated` and `attention`.
  double total() const { return weights + optimizer + averages + all_gradients() + gathered + activations; }
};

// What one rank of a pipeline has of the model.
struct PipelineShare {
  struct Stage {
    int64_t first_block = 0, end_block = 0;
    bool embedding = false, head = false;
  };
  std::vector<Stage> stages{};
  int64_t kept_inputs = 0;      // of blocks and of the head, over all microbatches kept at once
  int64_t deferred_blocks = 0;  // whose weight gradients wait for their half of a backward at once
  bool gathers_stages = false;  // a stage's weights for several microbatches
  bool has_head() const { return std::ranges::any_of(stages, &Stage::head); }
};
// Of a stage, on one of `tensor` ranks that shard its matrices.
double parameters_of(const models::ModelArgs& model, const PipelineShare::Stage& stage, double tensor = 1);

// Bytes of a layer's names, shapes and tensors without their data.
constexpr double kDescriptionOfLayer = 4096;

// `shards`: ranks that share the parameters of one tensor parallel rank (fsdp); `microbatches`: of one step;
// `share`: without one, a pipeline's ranks count alike, as if all of them had the same.
JobSize job_size(const config::JobConfig& config, const models::ModelDescription& model, int64_t shards,
                 int64_t microbatches, const PipelineShare* share = nullptr);
JobSize job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                 int64_t microbatches, const PipelineShare* share = nullptr);
// Of the rank that needs the most; `shares`: by rank of the pipeline, none without one.
JobSize largest_job_size(const config::JobConfig& config, const models::ModelArgs& model, int64_t shards,
                         int64_t microbatches, std::span<const PipelineShare> shares);

}  // namespace hyperion::trainer
