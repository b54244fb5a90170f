// A Runtime holds this process's rank, its device, the mesh and the process groups.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <c10/core/Device.h>

#include "parallel/comm/process_group.h"
#include "parallel/job/environment.h"
#include "parallel/mesh.h"
#include "trainer/plan/memory_needs.h"

namespace hyperion::trainer {

struct Runtime {
  parallel::Environment environment;
  at::Device device = at::kCPU;
  std::string device_name = "CPU";
  int compute_capability = 0;  // GPU only: 90 for SM90
  std::unique_ptr<parallel::Mesh> mesh;
  std::unique_ptr<parallel::ProcessGroups> groups;
  bool dry_run = false;  // this rank runs alone: the others do not exist
  bool prints = true;    // whether this rank's log lines are shown: rank_prints() of base/log.h, or a dry run

  int rank() const { return environment.rank; }
  int world_size() const { return environment.world_size; }
  parallel::Communicator& group(parallel::MeshDim dim) const { return groups->get(dim); }
};

// Returns the job's environment from torchrun's or SLURM's variables. With comm.mode = "fake_backend" one
// process runs as rank RANK (0 if unset) of NGPU ranks, of which ranks_of_node() are on a node.
parallel::Environment job_environment(const config::JobConfig& config);

// Returns the warning of a dry run; "" for other jobs.
std::string dry_run_warning(const config::JobConfig& config, const parallel::Environment& environment);

// Returns LOCAL_WORLD_SIZE, where no launcher has started the `ranks` ranks of the job; all if it is unset.
int ranks_of_node(int ranks);
// Throws Error(kUsage) if tokens travel once per node and this rank is not numbered node by node.
void require_numbering_by_node(const config::JobConfig& config, const parallel::Environment& environment);

// Returns the mesh's degrees; expert parallelism applies to MoE models only. ranks_per_node: by which ep is
// divided if tokens travel once per node, as check_config() allows; 0: it is not divided.
parallel::MeshConfig mesh_config(const config::JobConfig& config, int ranks_per_node = 0);

// Returns the environment variables of CUDA and its libraries that a job on GPUs sets, unless the user has,
// before there is a context.
std::map<std::string, std::string> cuda_environment(const config::JobConfig& config);

// Chooses the device (HYPERION_DEVICE), checks that the job can fit into device and host memory, joins the
// other ranks and builds the process groups. `largest(on_gpu)` is the size of the rank that needs the most.
// `tied` is CommOptions::tied. Throws Error(kUsage) or Error(kCommunication).
Runtime start_runtime(const config::ResolvedConfig& resolved, const parallel::Environment& environment,
                      const std::function<JobSize(bool on_gpu)>& largest,
                      std::optional<std::pair<int, int>> tied);

// Throws Error(kUsage) if a rank of this size needs more memory than one of this host has.
void require_memory_of_rank(const config::ResolvedConfig& resolved, const JobSize& size,
                            const parallel::Environment& environment, at::Device device);

// Returns the memory that one of this host's `ranks` ranks may use. `device` is a CPU or the chosen GPU.
RankMemory rank_memory(at::Device device, int ranks);

}  // namespace hyperion::trainer
