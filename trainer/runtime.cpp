#include "trainer/runtime.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "parallel/device.h"
#include "parallel/device_library.h"

namespace hyperion {
namespace {

bool fake(const JobConfig& config) {
  return config.comm.mode == "fake_backend";
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

Environment job_environment(const JobConfig& config) {
  if (!fake(config)) return read_environment();
  const std::string ranks = variable("NGPU").value_or("1");
  char* end = nullptr;
  const long count = std::strtol(ranks.c_str(), &end, 10);
  if (end == ranks.c_str() || *end != '\0' || count < 1 || count > 1'000'000)
    throw_config(
        "NGPU = \"{}\": comm.mode = \"fake_backend\" needs the number of ranks to play, 1 to 1000000", ranks);
  Environment environment;
  environment.world_size = environment.local_world_size = static_cast<int>(count);
  return environment;
}

MeshConfig mesh_config(const JobConfig::Parallelism& parallelism) {
  return {.pp = static_cast<int>(parallelism.pipeline_parallel_degree),
          .dp_replicate = static_cast<int>(parallelism.data_parallel_replicate_degree),
          .dp_shard = static_cast<int>(parallelism.data_parallel_shard_degree),
          .cp = static_cast<int>(parallelism.context_parallel_degree),
          .tp = static_cast<int>(parallelism.tensor_parallel_degree)};
}

Runtime start_runtime(const JobConfig& config, const Environment& environment) {
  Runtime runtime;
  runtime.environment = environment;
  CommOptions options;
  options.init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds);
  options.trace_buffer_size = static_cast<int>(config.comm.trace_buf_size);
  options.trace_prefix = config.job.dump_folder + "/" + config.comm.save_traces_folder + "/" +
                         config.comm.save_traces_file_prefix;
  // cuBLAS is deterministic only with a workspace of fixed size, which it reads from here when it starts.
  if (config.debug.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  if (choose_device(variable("HYPERION_DEVICE"), probe_driver(), load_device_library) == DeviceKind::kCuda) {
    const int index = environment.local_rank % device_library().device_count();
    device_library().set_device(index);
    runtime.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    runtime.device_name = device_library().device_name(index);
    runtime.compute_capability = device_library().compute_capability(index);
    options.backend = CommBackend::kNccl;
    options.device_index = index;
    std::filesystem::create_directories(std::filesystem::path(options.trace_prefix).parent_path());
  }
  if (fake(config)) options.backend = CommBackend::kFake;
  runtime.mesh = std::make_unique<Mesh>(mesh_config(config.parallelism), environment.world_size);
  failpoint("init.before_pg");
  runtime.groups = std::make_unique<ProcessGroups>(*runtime.mesh, environment, options);
  failpoint("init.after_pg");
  return runtime;
}

}  // namespace hyperion
