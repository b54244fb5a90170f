// Memory of the simulated GPU: memory of this process, of which it is known what it is to CUDA.
#pragma once

#include <cstddef>

namespace simulated_gpu {

enum class MemoryKind { kPageable, kPinned, kDevice };

// Of each GPU: HYPERION_SIMULATED_MEMORY bytes; 80 GiB.
size_t device_memory();

// False where HYPERION_SIMULATED_COMPUTE=off: then nothing is computed, copied or sent, so that models of any
// size show what they ask a GPU for. Device memory holds zeros.
bool computing();

// Null when there is not enough. Device memory is handed out full of NaNs.
void* allocate(size_t bytes, MemoryKind kind);
void release(void* memory);

// Device memory as the driver gives it, for libtorch's expandable segments: counted when made, usable where
// mapped.
bool make_pages(size_t bytes);
void drop_pages(size_t bytes);
void map_pages(void* address, size_t bytes);
void unmap_pages(void* address, size_t bytes);

MemoryKind kind_of(const void* memory);
size_t device_memory_in_use();

}  // namespace simulated_gpu
