#include "trainer/runtime/runtime.h"

#include <cstdlib>

#include <catch2/catch.hpp>

#include "parallel/job/network.h"

namespace hyperion::trainer {

TEST_CASE("a job on GPUs uses all hardware queues unless the user says how many") {
  using Variables = std::map<std::string, std::string>;
  config::JobConfig config;
  CHECK(cuda_environment(config) == Variables{{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}});
  config.debug.deterministic = true;
  CHECK(cuda_environment(config) ==
        Variables{{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}});
  const auto in_use = [&](const char* of_user) {
    of_user == nullptr ? ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS")
                       : ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", of_user, 1);
    parallel::set_unless_user_did(cuda_environment(config));
    const std::string value = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
    return value;
  };
  CHECK(in_use(nullptr) == "32");
  CHECK(in_use("1") == "1");
}

}  // namespace hyperion::trainer
