// Communicators over libtorch's backends: Gloo for CPU tensors, NCCL for CUDA tensors.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "parallel/comm/communicator.h"
#include "parallel/job/environment.h"

namespace c10d {
class Store;
class Backend;
}  // namespace c10d

namespace hyperion::parallel {

// Connects the group over gloo_interfaces() (parallel/job/network.h). Collective over the group's ranks;
// `store` must be scoped to the group.
std::unique_ptr<Communicator> make_gloo_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const Environment& environment,
                                                     std::chrono::milliseconds timeout);

// `backend` comes from DeviceLibrary::make_nccl_backend. Operations run on the caller's current stream.
std::unique_ptr<Communicator> make_nccl_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     c10::intrusive_ptr<c10d::Backend> backend);

// Returns whether a failure has leaked NCCL communicators. The process must then end without destructors,
// because the communicators' threads still run.
bool nccl_communicators_leaked();

}  // namespace hyperion::parallel
