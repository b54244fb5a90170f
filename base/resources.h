// Memory, threads and open files that run out (ExitCode::kResources): recognised in what libraries throw for
// them, and how much memory there is.
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
  bool of_gpu = false;  // that of a GPU
};

// nullopt when `error` says something else. Knows std::bad_alloc, std::length_error, std::system_error with
// ENOMEM, EAGAIN (the start of a thread) or EMFILE, and the texts of libtorch's and CUDA's allocators, of
// oneDNN and of libraries that get no socket.
std::optional<ExhaustedResource> exhausted_resource(const std::exception& error);

struct MemoryLimit {
  double bytes = 0;
  std::string what;  // "this host's memory and swap", "the limit of cgroup /job"
};

// What the ranks of this host can have together at most: memory and swap, or less where a cgroup limits them.
// `root` stands for /, where proc and sys are read; without them there is no limit.
MemoryLimit host_memory(const std::filesystem::path& root = "/");

// Of this process alone (RLIMIT_AS, `ulimit -v`); nullopt: none.
std::optional<MemoryLimit> process_memory();

// Throws what exhausted_resource() knows when this process cannot start `count` more threads now. For
// libraries that hang or abort the process when they get none.
void require_threads(int count);

// Throws std::system_error (EMFILE) when this process may not open `count` more files and sockets. For
// libraries whose message does not say so, or that wait instead.
void require_open_files(size_t count);

// Raises this process's limit of open files to the most that it may set itself: a rank has a socket for each
// rank that it talks to.
void raise_open_file_limit();

}  // namespace hyperion
