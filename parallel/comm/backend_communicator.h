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

// Connects the group over gloo_interfaces() (parallel/job/network.h): collective over its ranks, `store` must
// be scoped to the group.
std::unique_ptr<Communicator> make_gloo_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const Environment& environment,
                                                     std::chrono::milliseconds timeout);

// `backend`: what DeviceLibrary::make_nccl_backend returned. Operations run on the caller's current stream.
std::unique_ptr<Communicator> make_nccl_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     c10::intrusive_ptr<c10d::Backend> backend);

// Whether a failure has left communicators of NCCL to the end of the process: it must end without
// destructors, because their threads still run.
bool communicators_left_behind();

}  // namespace hyperion::parallel
