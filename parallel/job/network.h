// Finds the network interface over which this host's ranks talk, and the environment variables about it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/job/environment.h"

namespace hyperion::parallel {

struct NetworkInterface {
  std::string name;     // "eth0"; empty if no interface has the address
  std::string address;  // "10.0.0.2"; empty if the user chose the interface by name
  std::string why;      // "as GLOO_SOCKET_IFNAME says"
};

// The interfaces that Gloo listens on: those that GLOO_SOCKET_IFNAME (`wanted`, a comma list) names; else
// loopback if all ranks are on this host; else the interface that routes to MASTER_ADDR. Throws
// Error(kUsage) if an interface does not exist, Error(kCommunication) if none leads to other hosts.
std::vector<NetworkInterface> gloo_interfaces(const Environment& environment, std::string_view wanted);
std::vector<NetworkInterface> gloo_interfaces(const Environment& environment);  // from the environment

// This process's environment variables that the communication libraries read (NCCL_*, TORCH_NCCL_*,
// TORCH_FR_*, GLOO_*), sorted by name.
std::vector<std::pair<std::string, std::string>> network_variables();

// c10d's variables and the older names that it reads if the newer one is not set.
inline constexpr std::pair<const char*, const char*> kOlderNames[] = {
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"},
    {"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"},
    {"TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG"},
    {"TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"},
    {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"},
    {"TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK"},
    {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"},
    {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}};

// Sets environment variables of this process that the user has not set under this or an older name.
void set_unless_user_did(const std::map<std::string, std::string>& variables);

// Lines for the start of the log: interfaces and variables. `nccl` says that the ranks exchange tensors
// over NCCL, which chooses its own interfaces unless a variable names them. `variables` are
// network_variables() as the user set them.
std::vector<std::string> describe_network(const std::vector<NetworkInterface>& gloo, bool nccl,
                                          const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace hyperion::parallel
