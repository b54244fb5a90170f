// Recognizes exhausted memory, threads and open files (ExitCode::kResources) in exceptions of libraries,
// and says how much memory there is.
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>

namespace hyperion {

struct ExhaustedResource {
  enum class Kind { kMemory, kThreads, kFiles };
  Kind kind;
  std::string what;     // "memory ran out: 4096 bytes were asked for at once"; with the remedy for kFiles
  bool on_gpu = false;  // memory of a GPU
};

// Returns nullopt if `error` says something else. Recognizes std::bad_alloc, std::length_error,
// std::system_error with ENOMEM, EAGAIN (starting a thread) or EMFILE, and the messages of libtorch's and
// CUDA's allocators, of oneDNN and of libraries that fail to open a socket.
std::optional<ExhaustedResource> exhausted_resource(const std::exception& error);

struct MemoryLimit {
  double bytes = 0;
  std::string what;  // "this host's memory and swap", "the limit of cgroup /job"
};

// The memory that the ranks of this host share: memory and swap, or less if a cgroup limits them. `root`
// replaces /, where proc and sys are read; without them there is no limit.
MemoryLimit host_memory(const std::filesystem::path& root = "/");

// The limit of this process (RLIMIT_AS, `ulimit -v`); nullopt if there is none.
std::optional<MemoryLimit> process_memory();

// Throws an error that exhausted_resource() recognizes if this process cannot start `count` more threads
// now. It is for libraries that hang or abort without threads.
void require_threads(int count);

// Throws std::system_error (EMFILE) if this process may not open `count` more files and sockets. It is for
// libraries whose message does not say so, or that wait instead.
void require_open_files(size_t count);

// Raises this process's limit of open files to the hard limit: a rank has a socket for each rank that it
// talks to.
void raise_open_file_limit();

}  // namespace hyperion
