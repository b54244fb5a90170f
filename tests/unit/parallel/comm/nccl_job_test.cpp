#include "parallel/comm/nccl_job.h"

#include <map>
#include <new>
#include <stdexcept>

#include <catch2/catch.hpp>

#include <c10/util/Exception.h>

namespace hyperion::parallel {
namespace {

using Variables = std::map<std::string, std::string>;

VariableProblems problems_of(const Variables& variables) {
  const auto lookup = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return contradicting_variables(lookup, {"lo", "eth0", "ib0"});
}

c10::SourceLocation here() {
  return {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
}

}  // namespace

TEST_CASE("variables that contradict each other are refused with their names and values") {
  struct Case {
    Variables variables;
    std::vector<std::string> named;  // in the one sentence
  };
  const std::vector<Case> refused = {
      {{{"TORCH_NCCL_ENABLE_TIMING", "1"}, {"NCCL_ENABLE_TIMING", "0"}},
       {"TORCH_NCCL_ENABLE_TIMING=1", "NCCL_ENABLE_TIMING=0"}},
      {{{"TORCH_FR_BUFFER_SIZE", "10"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE", "20"}},
       {"TORCH_FR_BUFFER_SIZE=10", "TORCH_NCCL_TRACE_BUFFER_SIZE=20"}},
      {{{"PYTORCH_ALLOC_CONF", "a:1"}, {"PYTORCH_CUDA_ALLOC_CONF", "a:2"}},
       {"PYTORCH_ALLOC_CONF=a:1", "PYTORCH_CUDA_ALLOC_CONF=a:2"}},
      {{{"TORCH_NCCL_BLOCKING_WAIT", "1"}}, {"TORCH_NCCL_BLOCKING_WAIT=1", "comm.train_timeout_seconds"}},
      {{{"TORCH_NCCL_USE_COMM_NONBLOCKING", "1"}}, {"TORCH_NCCL_USE_COMM_NONBLOCKING=1"}},
      {{{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}},
       {"TORCH_NCCL_DUMP_ON_TIMEOUT=1", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1"}},
      {{{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"}, {"TORCH_FR_BUFFER_SIZE", "0"}},
       {"TORCH_NCCL_DUMP_ON_TIMEOUT=1", "TORCH_FR_BUFFER_SIZE=0"}},
      {{{"NCCL_SOCKET_IFNAME", "bond"}}, {"NCCL_SOCKET_IFNAME=bond", "eth0, ib0, lo"}},
      {{{"NCCL_SOCKET_IFNAME", "=eth"}}, {"NCCL_SOCKET_IFNAME==eth"}},
  };
  for (const Case& one : refused) {
    const VariableProblems problems = problems_of(one.variables);
    CAPTURE(one.variables.begin()->first, problems.refused);
    REQUIRE(problems.refused.size() == 1);
    for (const std::string& name : one.named) CHECK_THAT(problems.refused[0], Catch::Contains(name));
  }
}

TEST_CASE("variables that agree are left alone and one that is slow is warned of") {
  for (const Variables& variables :
       std::vector<Variables>{{},
                              {{"TORCH_FR_BUFFER_SIZE", "10"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE", "10"}},
                              {{"TORCH_NCCL_BLOCKING_WAIT", "0"}},
                              {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"}},
                              {{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}},
                              {{"NCCL_SOCKET_IFNAME", "bond,eth"}},
                              {{"NCCL_SOCKET_IFNAME", "=ib0"}},
                              {{"NCCL_SOCKET_IFNAME", "^docker"}},
                              {{"NCCL_SOCKET_IFNAME", ""}}}) {
    const VariableProblems problems = problems_of(variables);
    CAPTURE(problems.refused);
    CHECK(problems.refused.empty());
    CHECK(problems.warned.empty());
  }
  const VariableProblems slow = problems_of({{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}});
  CHECK(slow.refused.empty());
  REQUIRE(slow.warned.size() == 1);
  CHECK_THAT(slow.warned[0], Catch::Contains("CUDA_DEVICE_MAX_CONNECTIONS=1"));
}

TEST_CASE(
    "a bug and a failed GPU and exhausted memory and a lost peer are told apart in a thread of libtorch") {
  const auto watchdog = [](const std::string& what) {  // what c10d's watchdog throws, whatever it met
    return code_of_thread_failure(c10::DistBackendError(
        here(),
        "[PG ID 1 PG GUID fsdp/0 Rank 0] Process group watchdog thread terminated with exception: " + what));
  };
  CHECK(watchdog("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=638)") ==
        ExitCode::kCommunication);
  CHECK(watchdog("NCCL error: remote process exited or there was a network error") ==
        ExitCode::kCommunication);
  CHECK(watchdog("CUDA error: an illegal memory access was encountered") == ExitCode::kHardware);
  CHECK(watchdog("CUDA error: uncorrectable ECC error encountered") == ExitCode::kHardware);
  CHECK(watchdog(
            "NCCL error: unhandled cuda error, Last error: Cuda failure 719 'unspecified launch failure'") ==
        ExitCode::kHardware);
  CHECK(watchdog("CUDA error: misaligned address") == ExitCode::kBug);
  CHECK(watchdog("CUDA error: out of memory") == std::nullopt);
  CHECK(code_of_thread_failure(c10::AcceleratorError(here(), 716, "a misaligned address")) == ExitCode::kBug);
  CHECK(code_of_thread_failure(std::bad_alloc()) == std::nullopt);
  CHECK(code_of_thread_failure(std::logic_error("vector::at")) == std::nullopt);
}

}  // namespace hyperion::parallel
