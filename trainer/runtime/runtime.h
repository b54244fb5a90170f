// Where a job runs: this process among the ranks, its device, the mesh, and the process groups.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <c10/core/Device.h>

#include "parallel/comm/process_group.h"
#include "parallel/job/environment.h"
#include "parallel/mesh.h"
#include "trainer/plan/memory_needs.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {

struct Runtime {
  parallel::Environment environment;
  at::Device device = at::kCPU;
  std::string device_name = "CPU";
  int compute_capability = 0;  // of a GPU: 90 for SM90
  std::unique_ptr<parallel::Mesh> mesh;
  std::unique_ptr<parallel::ProcessGroups> groups;
  bool dry_run = false;  // of this rank alone: the others do not exist
  bool prints = true;    // whether this rank's log lines are shown: rank_prints() of base/log.h, or a dry run

  int rank() const { return environment.rank; }
  int world_size() const { return environment.world_size; }
  parallel::Communicator& group(parallel::MeshDim dim) const { return groups->get(dim); }
};

// The ranks of this job: torchrun's or SLURM's variables; with comm.mode = "fake_backend" one process runs as
// rank RANK (0 where that is not set) of NGPU ranks.
parallel::Environment job_environment(const config::JobConfig& config);

// What a start says of a dry run; "" for other jobs.
std::string dry_run_warning(const config::JobConfig& config, const parallel::Environment& environment);

// Experts are divided where the model has some.
parallel::MeshConfig mesh_config(const config::JobConfig& config);

// Chooses the device (HYPERION_DEVICE) and checks that the job can fit into its memory and the host's, joins
// the other ranks, builds the groups. `shares`: of the pipeline's ranks, none without one. `tied`:
// CommOptions::tied. Throws Error(kUsage) or Error(kCommunication).
Runtime start_runtime(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                      const parallel::Environment& environment, std::span<const PipelineShare> shares,
                      std::optional<std::pair<int, int>> tied);

// Throws Error(kUsage) where the largest rank of the job needs more memory than this host's ranks have.
// `shares` as above.
void require_memory_of_rank(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                            const parallel::Mesh& mesh, const parallel::Environment& environment,
                            at::Device device, std::span<const PipelineShare> shares);

// What one of `ranks` ranks of this host may use; `device` is a CPU or a GPU that has been chosen.
RankMemory rank_memory(at::Device device, int ranks);

}  // namespace hyperion::trainer
