// A communicator of the simulated NCCL: what its ranks, processes of one host, have in common.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include "tests/simulated_gpu/memory.h"
#include "tests/simulated_gpu/stream.h"

namespace simulated_gpu {

constexpr size_t kSlot = 1 << 20;
constexpr size_t kPiece = 128 << 10;  // of what one rank sends another
constexpr int kMostRanks = 64;
constexpr std::chrono::minutes kPatience{5};

struct Member {
  pid_t process;
  std::atomic<bool> left;             // in order, so that nobody misses it
  std::atomic<uint32_t> collectives;  // that it has come to
  char call[128];                     // the newest
  std::atomic<uint32_t> launches;     // of sends and receives: odd while it is in one,
  // which has yet to send `sends` messages to each rank and to receive `receives` from it.
  std::atomic<int> sends[kMostRanks], receives[kMostRanks];
};

struct alignas(64) Shared {
  std::atomic<uint32_t> arrived, round;
  std::atomic<bool> stopped;  // by one rank for all of them:
  char why[512];
  Member members[kMostRanks];

  // After it, a slot of kSlot bytes for each rank, and a channel for each ordered pair.
  std::byte* slots() { return reinterpret_cast<std::byte*>(this + 1); }
};

// What one rank sends another: one piece at a time.
struct alignas(64) Channel {
  std::atomic<uint32_t> written, read;  // pieces so far
  size_t length;                        // bytes of the newest
  char what[64];                        // of which message: "8 x Float"
  std::byte piece[kPiece];
};

inline size_t shared_bytes(int size) {
  const auto ranks = static_cast<size_t>(size);
  return sizeof(Shared) + kSlot * ranks + sizeof(Channel) * ranks * ranks;
}

[[noreturn]] void stop(const std::string& why);

// Leaves the core to others in a loop that waits for another thread or rank since `begin`: a short wait
// yields, a longer one sleeps for a part of the time that it has taken.
void leave_core(std::chrono::steady_clock::time_point begin);

}  // namespace simulated_gpu

struct ncclComm {
  int rank, size;
  simulated_gpu::Shared* shared;
  std::atomic<uint64_t> enqueued = 0;
  std::atomic<uint64_t> turn = 0;
  std::atomic<bool> aborted = false;

  // Returns when all that was enqueued has run, as NCCL does; a lost peer keeps it waiting until an abort.
  void finish() const {
    const auto begin = std::chrono::steady_clock::now();
    while (turn < enqueued && !aborted) simulated_gpu::leave_core(begin);
  }

  // Whatever their streams, a communicator's calls run in their order.
  void enqueue(cudaStream_t stream, const simulated_gpu::Work& work) {
    if (!simulated_gpu::computing()) return;
    simulated_gpu::stream_of(stream).enqueue([this, ticket = enqueued++, work] {
      const auto begin = std::chrono::steady_clock::now();
      while (turn != ticket) simulated_gpu::leave_core(begin);
      work();
      ++turn;
    });
  }

  std::byte* slot(int of) const { return shared->slots() + simulated_gpu::kSlot * static_cast<size_t>(of); }
  simulated_gpu::Channel& channel(int from, int to) const {
    return reinterpret_cast<simulated_gpu::Channel*>(slot(size))[static_cast<size_t>(from * size + to)];
  }

  // Ends this process, and the others at their next wait.
  [[noreturn]] void stop_all(const std::string& why) const;
  // While this rank waits for others since `begin`; leaves the core to them.
  void wait(std::chrono::steady_clock::time_point begin) const;
  // What NCCL cannot see: that would hang, or mix up memory.
  void require_same_call() const;
  void barrier() const;
};
