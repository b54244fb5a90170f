// Environment says which rank this process is, from torchrun's variables, from SLURM's alone, or as a
// single process.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::parallel {

struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // index on this host, and of its GPU
  int local_world_size = 1;  // ranks on this host
  int node = 0;              // index of this host (GROUP_RANK, SLURM_NODEID)
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  int master_listen_fd =
      -1;  // socket that already listens on master_port (rank 0; a launcher in the same process)

  bool agent_store = false;  // torchrun's agent serves the store at master_addr:master_port
  int restart_count = 0;     // TORCHELASTIC_RESTART_COUNT: separates attempts in such a store
  bool batch_shell = false;  // SLURM's batch script of a multi-task job, not started by srun

  bool single_host() const { return local_world_size == world_size; }
};

// The time in which a rank must answer the others after an operation has failed, or while the rendezvous
// fails (comm.peer_response_timeout_seconds).
inline constexpr std::chrono::seconds kPeerResponseTimeout{2};

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// RANK and WORLD_SIZE (torchrun) take precedence over SLURM_PROCID and SLURM_NTASKS; with neither, this is
// rank 0 of 1. Under SLURM the master is the first host of the job's node list and the port is derived from
// the job id, unless MASTER_ADDR / MASTER_PORT are set. Throws Error(kUsage) naming the variable and its
// value if one is missing or malformed.
Environment read_environment(const EnvironmentLookup& lookup);
Environment read_environment();  // from the process's own environment

// Throws Error(kUsage) for a batch shell: the ranks that it would wait for are not started.
void require_started_ranks(const Environment& environment);

// Why this cannot be a host's name or address ("[::1]", "host:29500", "tcp://host"), and what to write
// instead; "" if it can.
std::string address_problem(const std::string& address);

// The hosts of a SLURM node list: "n[0-2,7],gpu1" -> n0 n1 n2 n7 gpu1; leading zeros are kept ("n[08-10]").
// Throws Error(kUsage) on a malformed list or one of more than 100,000 hosts.
std::vector<std::string> expand_node_list(std::string_view list);

}  // namespace hyperion::parallel
