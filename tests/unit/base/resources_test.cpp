#include "base/resources.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>
#include <system_error>

#include <catch2/catch.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/temporary_folder.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

// A root folder with the files of proc and sys that tell how much memory there is.
using FakeRoot = test::TemporaryFolder;

}  // namespace

TEST_CASE("What libraries throw for want of memory or threads is recognised") {
  using Kind = ExhaustedResource::Kind;
  const auto what = [](const std::exception& error) {
    const auto found = exhausted_resource(error);
    return found ? found->what : "";
  };
  CHECK(what(std::bad_alloc()) == "memory ran out");
  CHECK(what(std::length_error("vector::_M_default_append")) == "memory ran out");
  CHECK(what(std::runtime_error(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 4096 bytes. Error code 12 (Cannot allocate memory)")) ==
        "memory ran out: 4096 bytes were asked for at once");
  CHECK(what(std::runtime_error(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of")) ==
        "memory ran out: 2.50 GiB were asked for at once");
  CHECK(what(std::runtime_error("Cuda failure 2 'out of memory'")) == "memory ran out");
  const auto on_gpu = [](const char* text) { return exhausted_resource(std::runtime_error(text))->on_gpu; };
  CHECK(on_gpu("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of"));
  CHECK(on_gpu("Cuda failure 2 'out of memory'"));
  CHECK_FALSE(on_gpu("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."));
  CHECK(what(std::runtime_error("could not create a primitive")) ==
        "memory ran out: oneDNN could not create a primitive");
  CHECK(what(std::runtime_error("could not create a memory object")) ==
        "memory ran out: oneDNN could not create a memory");
  CHECK(what(std::runtime_error("could not execute a primitive")) ==
        "memory ran out: oneDNN could not execute a primitive");
  CHECK(what(std::runtime_error("could not create a primitive descriptor for the matmul primitive")).empty());
  CHECK(what(std::runtime_error("could not create a memory descriptor from blob")).empty());
  CHECK(what(std::runtime_error(
            "libfoo.so: failed to map segment from shared object: Cannot allocate memory")) ==
        "memory ran out");
  const auto thread =
      exhausted_resource(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  REQUIRE(thread);
  CHECK(thread->kind == Kind::kThreads);
  CHECK(what(std::system_error(std::make_error_code(std::errc::not_enough_memory))) == "memory ran out");
  const std::system_error many(std::make_error_code(std::errc::too_many_files_open));
  const std::runtime_error socket("listen: socket: (errno: 24 - Too many open files)");
  const std::runtime_error seed("Unable to open /dev/urandom");  // libtorch's, and the device can be read
  for (const std::exception* error :
       {static_cast<const std::exception*>(&many), static_cast<const std::exception*>(&socket),
        static_cast<const std::exception*>(&seed)}) {
    const auto files = exhausted_resource(*error);
    REQUIRE(files);
    CHECK(files->kind == Kind::kFiles);
    CHECK(files->what.find("ulimit -n") != std::string::npos);
  }
  CHECK(what(std::runtime_error("socket: Too many open files in system")) ==
        "the host has too many open files (ENFILE); raise its limit (fs.file-max)");
  CHECK_FALSE(exhausted_resource(std::system_error(std::make_error_code(std::errc::no_space_on_device))));
  CHECK_FALSE(exhausted_resource(std::runtime_error("recv failed: Resource temporarily unavailable")));
}

TEST_CASE("Threads that a limit of the address space leaves no room for are missed before they are started") {
  CHECK_NOTHROW(require_threads(3));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit tight = before;
  tight.rlim_cur = 1;  // less than is mapped: nothing may be allocated until it is gone
  std::error_code found;
  REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
  try {
    require_threads(1);
  } catch (const std::system_error& error) {
    found = error.code();
  }
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(found == std::errc::resource_unavailable_try_again);
}

TEST_CASE("The memory of a host is what it has or what a cgroup leaves of it") {
  const FakeRoot root;
  CHECK(host_memory(root.path()).bytes == std::numeric_limits<double>::infinity());
  root.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nSwapTotal:      24 kB\n");
  CHECK(host_memory(root.path()).bytes == 1024 * 1024);
  CHECK(host_memory(root.path()).what == "this host's memory and swap");

  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/memory.max", "500000\n");
  root.write("sys/fs/cgroup/job/memory.swap.max", "0\n");
  CHECK(host_memory(root.path()).bytes == 500000);
  CHECK(host_memory(root.path()).what == "the limit of cgroup /job");
  root.write("sys/fs/cgroup/job/memory.swap.max", "max\n");
  CHECK(host_memory(root.path()).bytes == 500000 + 24 * 1024);

  root.write("proc/self/cgroup", "0::/job/task_3\n");  // one task's own limit is none of the host's ranks
  root.write("sys/fs/cgroup/job/task_3/memory.max", "1000\n");
  CHECK(host_memory(root.path()).bytes == 500000 + 24 * 1024);

  root.write("proc/self/cgroup", "5:cpu,memory:/old\n1:name=systemd:/x\n");
  root.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "300000\n");
  CHECK(host_memory(root.path()).bytes == 300000 + 24 * 1024);
}

TEST_CASE("the limit of open files is raised as far as a process may") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  raise_open_file_limit();
  rlimit raised{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &raised) == 0);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(raised.rlim_cur == before.rlim_max);
}

}  // namespace hyperion
