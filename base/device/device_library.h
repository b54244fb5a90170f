// The DeviceLibrary is our CUDA code, reached through one table of functions in libhyperion_cuda.so. The
// binary itself links no CUDA, so on a CPU machine it starts as fast as if CUDA did not exist
// (libtorch_cuda alone costs 0.15 s and 360 MB to load).
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
class Backend;
}  // namespace c10d

namespace hyperion {

namespace kernels {
struct Kernels;  // models/kernels/kernels.h
}

struct NcclOptions {
  std::string name;  // the group's name, for NCCL's own messages and traces
  std::chrono::milliseconds timeout{};
  int device_index = 0;
  bool high_priority = true;
  // The most thread blocks (CTAs) of a launch, and of one by NVLink SHARP; 0: NCCL chooses.
  int max_ctas = 0, nvls_ctas = 0;
};

// Every function may throw c10::Error. Device indices count the visible devices.
struct DeviceLibrary {
  static constexpr uint32_t kVersion = 9;  // raised whenever this struct or Kernels changes
  uint32_t version;
  uint32_t struct_size;

  int (*device_count)();
  void (*set_device)(int index);  // for the calling thread; initialises CUDA
  std::string (*device_name)(int index);
  int (*compute_capability)(int index);  // 90 for SM90
  int64_t (*total_memory)(int index);
  struct Memory {
    int64_t free = 0, total = 0;  // device memory, including other processes'
    int64_t reserved = 0;         // reserved by libtorch's allocator for this process
  };
  Memory (*memory)(int index);
  // Page-locked host memory of exactly this size; nullptr if there is none. (libtorch's own pool rounds up
  // to a power of two and never gives memory back.)
  void* (*allocate_pinned)(uint64_t bytes);
  void (*free_pinned)(void* memory);
  std::string (*versions)();  // "CUDA 13.0, NCCL 2.28.9"

  void (*record_memory_history)(int max_entries);  // 0 stops recording
  std::string (*memory_snapshot)();                // a pickle for pytorch.org/memory_viz

  void (*add_kernels)(kernels::Kernels& table);  // our GPU kernels

  // Collective over the group's ranks, which are connected when it returns.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_backend)(const c10::intrusive_ptr<c10d::Store>& store,
                                                         int rank, int size, const NcclOptions& options);
  // A send or receive of bytes on the GPU.
  struct NcclMessage {
    bool sends = false;
    int peer = 0;
    void* memory = nullptr;
    size_t bytes = 0;
  };
  // Adds messages to the coalesced operation of a group of make_nccl_backend(), behind its first call. They
  // are part of that operation's Work, and cost the host no call of c10d each.
  void (*add_nccl_messages)(c10d::Backend& group, int device_index, std::span<const NcclMessage> messages);
};

// The only symbol that libhyperion_cuda.so exports for us: const DeviceLibrary* hyperion_device_library().
inline constexpr const char* kDeviceLibraryEntry = "hyperion_device_library";

// Loads libhyperion_cuda.so from the folder of the running binary, once. Returns why it cannot be used;
// empty if it can.
std::string load_device_library();
// The loaded table. Throws Error(kBug) if load_device_library() was not called or failed.
const DeviceLibrary& device_library();

}  // namespace hyperion
