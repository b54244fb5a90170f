#include "trainer/runtime/runtime.h"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <ATen/Parallel.h>

#include "base/counted.h"
#include "base/device/device.h"
#include "base/device/device_library.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "parallel/comm/host_tree.h"
#include "parallel/job/network.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/runtime/cpu_binding.h"
#include "trainer/runtime/speed_check.h"
#include "trainer/runtime/version.h"

namespace hyperion::trainer {
namespace {

// Values that must be equal on every rank of a job.
parallel::Fingerprint job_identity(const config::JobConfig& config) {
  parallel::Fingerprint identity = {{"binary", version_text()}};
  for (const auto& [key, value] : config::config_entries(config)) identity[key] = value;
  return identity;
}

// Returns whether GPU tensors travel through the host's memory.
bool wants_staging(bool on_gpu, bool dry_run, const parallel::Environment& environment) {
  const std::optional<std::string> wanted = environment_variable("HYPERION_COMM");
  if (!wanted || wanted->empty()) return false;
  if (*wanted != "staged")
    throw_config("HYPERION_COMM = \"{}\": expected \"staged\", or no such variable", *wanted);
  if (!on_gpu || dry_run || !environment.single_host())
    throw_config("HYPERION_COMM=staged is for ranks of one host that share its GPUs, but {}: unset it",
                 dry_run   ? "this is a dry run"
                 : !on_gpu ? "this job runs on CPUs"
                           : "this job has several hosts");
  log_warning(
      "HYPERION_COMM=staged: GPU tensors travel through this host's memory while their GPU waits; this "
      "checks values and is no way to train");
  return true;
}

}  // namespace

parallel::Environment job_environment(const config::JobConfig& config) {
  if (!config::is_dry_run(config)) return parallel::read_environment();
  const std::string ranks = environment_variable("NGPU").value_or("1"),
                    rank = environment_variable("RANK").value_or("0");
  const std::optional<int> count = parse_number<int>(ranks), own = parse_number<int>(rank);
  if (!count || *count < 1 || *count > 1'000'000)
    throw_config(
        "NGPU = \"{}\": comm.mode = \"fake_backend\" needs the number of ranks to play, 1 to 1000000", ranks);
  if (!own || *own < 0 || *own >= *count)
    throw_config("RANK = \"{}\": comm.mode = \"fake_backend\" plays one of {}, 0 to {}", rank,
                 counted(*count, "rank"), *count - 1);
  parallel::Environment environment;
  environment.rank = *own;
  environment.world_size = *count;
  environment.local_world_size = ranks_of_node(*count);
  return environment;
}

int ranks_of_node(int ranks) {
  const std::string text = environment_variable("LOCAL_WORLD_SIZE").value_or("");
  if (text.empty()) return ranks;
  const std::optional<int> of_node = parse_number<int>(text);
  if (!of_node || *of_node < 1 || *of_node > ranks)
    throw_config("LOCAL_WORLD_SIZE = \"{}\": expected the ranks of a node, 1 to {}", text, ranks);
  return *of_node;
}

void require_numbering_by_node(const config::JobConfig& config, const parallel::Environment& environment) {
  if (!config::divides_experts(config) || !config.parallelism.expert_parallel_once_per_node ||
      config::is_dry_run(config) || parallel::placed_node_by_node(environment, environment.local_world_size))
    return;
  throw_config(
      "parallelism.expert_parallel_once_per_node: rank {} is number {} of the {} of node {}, so ranks are "
      "not "
      "numbered node by node; number them so (srun --distribution=block), or remove the key",
      environment.rank, environment.local_rank, counted(environment.local_world_size, "rank"),
      environment.node);
}

parallel::MeshConfig mesh_config(const config::JobConfig& config, int ranks_per_node) {
  const auto& parallelism = config.parallelism;
  const bool divides = config::divides_experts(config);
  return {.pp = static_cast<int>(parallelism.pipeline_parallel_degree),
          .dp_replicate = static_cast<int>(parallelism.data_parallel_replicate_degree),
          .dp_shard = static_cast<int>(parallelism.data_parallel_shard_degree),
          .cp = static_cast<int>(parallelism.context_parallel_degree),
          .tp = static_cast<int>(parallelism.tensor_parallel_degree),
          .ep = divides ? static_cast<int>(parallelism.expert_parallel_degree) : 1,
          .etp = divides ? static_cast<int>(parallelism.expert_tensor_parallel_degree) : 1,
          .ep_nodes = divides && parallelism.expert_parallel_once_per_node && ranks_per_node > 0
                          ? static_cast<int>(parallelism.expert_parallel_degree *
                                             parallelism.expert_tensor_parallel_degree / ranks_per_node)
                          : 1};
}

RankMemory rank_memory(at::Device device, int ranks) {
  const auto shared = [](MemoryLimit limit, int users) {
    if (users > 1) limit.what += fmt::format(" for each of {} ranks", users);
    limit.bytes /= users;
    return limit;
  };
  RankMemory memory{.host = shared(host_memory(), ranks), .threads = at::get_num_threads()};
  if (const auto own = process_memory(); own && own->bytes < memory.host.bytes) memory.host = *own;
  if (device.is_cpu()) return memory;
  const DeviceLibrary& library = device_library();
  const int devices = library.device_count();
  memory.device = shared({static_cast<double>(library.total_memory(device.index())), "the GPU's memory"},
                         (ranks + devices - 1) / devices);
  return memory;
}

void require_memory_of_rank(const config::ResolvedConfig& resolved, const JobSize& size,
                            const parallel::Environment& environment, at::Device device) {
  const bool dry_run = config::is_dry_run(resolved.config);
  RankMemory memory = rank_memory(device, dry_run ? 1 : environment.local_world_size);
  if (dry_run) memory.threads = 1;  // at least: those of this process may be all of a node's
  require_memory(resolved, size, memory);
}

std::string dry_run_warning(const config::JobConfig& config, const parallel::Environment& environment) {
  if (!config::is_dry_run(config)) return "";
  return fmt::format(
      "comm.mode = \"fake_backend\": a dry run of rank {} of {}, which exchanges nothing with other ranks, "
      "so its losses mean nothing; {}no metrics and no record of the run are written",
      environment.rank, counted(environment.world_size, "rank"),
      config.checkpoint.enable ? "checkpoint.enable = true has no effect (no checkpoint is loaded or saved); "
                               : "");
}

std::map<std::string, std::string> cuda_environment(const config::JobConfig& config) {
  // A GPU has 32 hardware queues, of which CUDA uses 8 by default. Streams that share a queue wait for each
  // other's events, and a job with a pipeline, experts and context parallelism has 12 streams.
  std::map<std::string, std::string> variables = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
  // cuBLAS is deterministic only with a workspace of fixed size, which it reads from here when it starts.
  if (config.debug.deterministic) variables.emplace("CUBLAS_WORKSPACE_CONFIG", ":4096:8");
  return variables;
}

Runtime start_runtime(const config::ResolvedConfig& resolved, const parallel::Environment& environment,
                      const std::function<JobSize(bool on_gpu)>& largest,
                      std::optional<std::pair<int, int>> tied) {
  const config::JobConfig& config = resolved.config;
  Runtime runtime;
  runtime.environment = environment;
  runtime.dry_run = config::is_dry_run(config);
  runtime.prints = runtime.dry_run || rank_prints(environment.rank);
  parallel::CommOptions options;
  options.init_timeout = std::chrono::seconds(config.comm.init_timeout_seconds);
  options.response_timeout = std::chrono::seconds(config.comm.peer_response_timeout_seconds);
  options.trace_buffer_size = static_cast<int>(config.comm.trace_buf_size);
  options.tied = tied;
  options.pipeline_ctas = static_cast<int>(config.comm.pipeline_max_ctas);
  options.chunks_tensor_parallel = config.parallelism.enable_async_tensor_parallel;
  options.trace_prefix = config.job.dump_folder + "/" + config.comm.save_traces_folder + "/" +
                         config.comm.save_traces_file_prefix;
  parallel::set_unless_user_did(cuda_environment(config));  // probe_driver() is the first call of CUDA
  if (choose_device(environment_variable("HYPERION_DEVICE"), probe_driver(), load_device_library) ==
      DeviceKind::kCuda) {
    if (environment_variable("PYTORCH_TUNABLEOP_ENABLED") == "1")
      throw_config(
          "PYTORCH_TUNABLEOP_ENABLED=1: libtorch's tuned matrix products do not leave fp32 sums of bf16 "
          "factors, which gradients of weights are here: unset it");
    const int index = environment.local_rank % device_library().device_count();
    bind_to_node_of_gpu(index);
    device_library().set_device(index);
    runtime.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    runtime.device_name = device_library().device_name(index);
    runtime.compute_capability = device_library().compute_capability(index);
    options.backend = parallel::CommBackend::kNccl;
    options.device_index = index;
    const std::filesystem::path dump = options.trace_prefix + std::to_string(environment.rank);
    require_place_for_folder(dump.parent_path());
    require_place_for_file(dump);
    make_folders(dump.parent_path());
  } else if (config.profiling.enable_profiling) {
    // libtorch's Kineto looks for GPUs at each trace and logs their absence as an ERROR; level 5 logs
    // nothing.
    ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  }
  options.staged = wants_staging(runtime.device.is_cuda(), runtime.dry_run, environment);
  options.identity = job_identity(config);
  if (config::is_dry_run(config)) {
    options.backend = parallel::CommBackend::kFake;
    log_warning("{}", dry_run_warning(config, environment));
  }
  runtime.mesh = std::make_unique<parallel::Mesh>(mesh_config(config, environment.local_world_size),
                                                  environment.world_size);
  require_memory_of_rank(resolved, largest(runtime.device.is_cuda()), environment, runtime.device);
  failpoint("init.before_pg");
  runtime.groups = std::make_unique<parallel::ProcessGroups>(*runtime.mesh, environment, options);
  failpoint("init.after_pg");
  if (runtime.device.is_cuda() && !config::is_dry_run(config) && config.comm.speed_check_seconds > 0)
    check_speed(*runtime.groups, *runtime.mesh, environment, runtime.device, config.comm.speed_check_seconds);
  return runtime;
}

}  // namespace hyperion::trainer
