// Implements DeviceLibrary with libtorch's CUDA allocator, the CUDA runtime and ProcessGroupNCCL.
#include <bit>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/memory_snapshot.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/device/device_library.h"

namespace hyperion {

namespace kernels {
void add_cuda_kernels(Kernels& table);  // models/kernels/common/cuda_kernels.cpp, in the same library
}

namespace {

cudaDeviceProp properties(int index) {
  cudaDeviceProp result;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&result, index));
  return result;
}

DeviceLibrary::Memory memory(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  DeviceLibrary::Memory result{static_cast<int64_t>(free), static_cast<int64_t>(total)};
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  if (allocator->initialized()) {
    using c10::CachingDeviceAllocator::StatType;
    const auto stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    result.reserved = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)].current;
  }
  return result;
}

void* allocate_pinned(uint64_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == cudaSuccess) return memory;
  cudaGetLastError();  // else the next launch would report it
  return nullptr;
}

std::string versions() {
  int cuda = 0, nccl = 0;
  C10_CUDA_CHECK(cudaRuntimeGetVersion(&cuda));
  TORCH_CHECK(ncclGetVersion(&nccl) == ncclSuccess, "NCCL does not say its version");
  return fmt::format("CUDA {}.{}, NCCL {}.{}.{}", cuda / 1000, cuda % 1000 / 10, nccl / 10000,
                     nccl % 10000 / 100, nccl % 100);
}

void record_memory_history(int max_entries) {
  const std::optional<std::string> enabled =
      max_entries > 0 ? std::optional<std::string>("all") : std::nullopt;
  torch::cuda::_record_memory_history(enabled, "all", "all", static_cast<size_t>(max_entries));
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, const NcclOptions& options) {
  const auto nccl = c10d::ProcessGroupNCCL::Options::create(options.high_priority);
  nccl->timeout = options.timeout;
  nccl->group_name = options.name;
  nccl->config.commName = nccl->group_name.c_str();  // NCCL keeps the pointer, the group keeps the options
  if (options.max_ctas > 0) nccl->config.maxCTAs = options.max_ctas;
  if (options.nvls_ctas > 0) nccl->config.nvlsCTAs = options.nvls_ctas;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, nccl);
  group->setGroupUid(options.name);
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_index));
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return group;
}

// Names what ProcessGroupNCCL protects: the stream that its collectives run on.
struct StreamOfGroup : c10d::ProcessGroupNCCL {
  static cudaStream_t get(c10d::ProcessGroupNCCL& group, int device_index) {
    return (group.*(&StreamOfGroup::ncclStreams_)).at(std::to_string(device_index)).stream();
  }
};

void add_nccl_messages(c10d::Backend& group, int device_index,
                       std::span<const DeviceLibrary::NcclMessage> messages) {
  auto& nccl = dynamic_cast<c10d::ProcessGroupNCCL&>(group);
  const c10::cuda::CUDAGuard guard(
      static_cast<c10::DeviceIndex>(device_index));  // whose communicator is used
  auto* const communicator = std::bit_cast<ncclComm_t>(nccl.getCommPtr());
  TORCH_CHECK(communicator != nullptr, "the group has no NCCL communicator yet");
  const cudaStream_t stream = StreamOfGroup::get(nccl, device_index);
  for (const auto& [sends, peer, memory, bytes] : messages) {
    const ncclResult_t result = sends ? ncclSend(memory, bytes, ncclInt8, peer, communicator, stream)
                                      : ncclRecv(memory, bytes, ncclInt8, peer, communicator, stream);
    TORCH_CHECK(result == ncclSuccess || result == ncclInProgress, "NCCL: ", ncclGetErrorString(result));
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const DeviceLibrary* hyperion_device_library() {
  static const DeviceLibrary library = {
      .version = DeviceLibrary::kVersion,
      .struct_size = sizeof(DeviceLibrary),
      .device_count = [] { return static_cast<int>(c10::cuda::device_count()); },
      .set_device = [](int index) { c10::cuda::set_device(static_cast<c10::DeviceIndex>(index)); },
      .device_name = [](int index) -> std::string { return properties(index).name; },
      .compute_capability = [](int index) { return 10 * properties(index).major + properties(index).minor; },
      .total_memory = [](int index) { return static_cast<int64_t>(properties(index).totalGlobalMem); },
      .memory = memory,
      .allocate_pinned = allocate_pinned,
      .free_pinned = [](void* memory) { C10_CUDA_CHECK_WARN(cudaFreeHost(memory)); },
      .versions = versions,
      .record_memory_history = record_memory_history,
      .memory_snapshot = torch::cuda::_memory_snapshot_pickled,
      .add_kernels = kernels::add_cuda_kernels,
      .make_nccl_backend = make_nccl_backend,
      .add_nccl_messages = add_nccl_messages,
  };
  return &library;
}

}  // namespace hyperion
