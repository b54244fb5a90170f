// Computes what a rank holds throughout a job, before anything is allocated: states and buffers. A replay
// (trainer/build/peak_memory.h) adds what a step allocates. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// A stage is the part of the model that a pipeline rank runs in one piece; a rank has one or several. Without
// a pipeline one stage has all units.
struct ModelStage {
  int64_t first_block = 0, end_block = 0;
  bool embedding = false, head = false;
};
inline ModelStage all_units(const models::ModelDescription& model) {
  return {.end_block = model.blocks(), .embedding = true, .head = true};
}
// Parameters of a stage.
double parameters_of(const models::ModelDescription& model, const ModelStage& stage);

// NCCL communicators of a rank by the traffic of their groups (parallel/comm/communicator_memory.h).
struct Communicators {
  int collectives = 0, exchanges = 0, stages = 0;
  int count() const { return collectives + exchanges + stages; }
};

// Bytes of one rank at the moment of a step at which its tensors have the most.
struct PeakMemory {
  double states = 0;       // masters, compute copies, optimizer states, averages, Muon's buffers
  double gradients = 0;    // sharded
  double unsharded = 0;    // unsharded gradients: sums of microbatches, and those of the unit in hand
  double gathered = 0;     // gathered weights
  double activations = 0;  // kept for backward
  double working = 0;   // temporary: logits, recomputed activations, rows of experts, communication buffers
  double reserved = 0;  // what the allocator holds in addition: freed blocks that later tensors did not fit
  // Returns the bytes that the step's tensors have at once, without states.
  double step() const { return gradients + unsharded + gathered + activations + working; }
  double total() const { return states + step() + reserved; }
};

// Bytes of one rank, as doubles so that no product overflows.
struct JobSize {
  double weights = 0;             // masters and compute-dtype copies
  double optimizer = 0;           // optimizer states
  double gradients = 0;           // all sharded gradients: on a host they live as long as the job
  double averages = 0;            // EMA
  double exchanges = 0;           // buffers in which Muon exchanges matrices with their owners
  double update = 0;              // what Muon's update needs besides; no other moment has it
  double expert_rows = 0;         // rows of one block that ranks exchange, as many as the mean of the ranks
  double attention = 0;           // scratch per thread that computes attention on a CPU
  double attention_threads = 1;   // most threads that can compute attention in a layer
  double save_pool = 0;           // copy of the state for background saves, in host memory
  Communicators communicators{};  // not counted: their bytes are not known
  double tokens = 0;              // tokens of a step's microbatches, in host memory
  double description = 0;         // names and shapes, in host memory
  bool mostly_tables = false;     // embedding and head hold more than half of the parameters
  PeakMemory peak{};              // peak_memory()

  double states() const { return weights + optimizer + gradients + averages; }
};

// Bytes of the names, shapes and tensor objects of a layer, without tensor data.
constexpr double kDescriptionOfLayer = 4096;

// Returns the size of a rank that has these stages, without `peak`.
JobSize job_size(const config::JobConfig& config, const models::ModelDescription& model,
                 const parallel::Mesh& mesh, std::span<const ModelStage> stages);

// Returns the bytes of `size` that a GPU holds throughout a job.
double states_on_gpu(const config::JobConfig& config, const JobSize& size);

}  // namespace hyperion::trainer
