#include "trainer/monitoring.h"

#include <filesystem>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "models/registry.h"
#include "parallel/device_library.h"
#include "trainer/config/print.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/gemm_peak.h"
#include "trainer/metrics/run_folder.h"
#include "trainer/metrics/step_line.h"
#include "trainer/options.h"
#include "trainer/version.h"

namespace hyperion {

namespace {

// What describes the run, by rank 0. A job that cannot write here makes no step, as with its first
// checkpoint.
void write_before_step_1(const RunDescription& run, int world_size, int64_t start_time) {
  const std::filesystem::path folder = run.config.job.dump_folder;
  try {
    write_run_record(folder, {to_toml(run.configured), run.command, version_text(), world_size, start_time});
    if (!run.config.job.save_config_file) return;
    const std::filesystem::path file = folder / *run.config.job.save_config_file;
    make_folders(file.parent_path());
    write_file_atomic(file, to_json(run.config) + "\n");
  } catch (const Error& error) {
    if (error.code() != ExitCode::kSaveFailed) throw;
    throw Error(
        ExitCode::kPreCheckpoint,
        fmt::format(
            "the record of the run cannot be written, so no step was made: {}; see to job.dump_folder",
            error.what()));
  }
}

}  // namespace

std::unique_ptr<MemoryMonitor> make_memory_monitor(const Runtime& runtime) {
  const bool cuda = runtime.device.is_cuda();
  return std::make_unique<MemoryMonitor>(cuda ? runtime.device.index() : MemoryMonitor::kCpu);
}

std::unique_ptr<MetricsLogger> make_metrics(const RunDescription& run, const Runtime& runtime,
                                            MemoryMonitor& memory, int64_t start_step) {
  const ParameterCounts counts = count_parameters(run.model);
  const FlopDimensions dimensions{.parameters = counts.total,
                                  .embedding_parameters = run.model.vocab_size * run.model.dim,
                                  .tied_head = run.model.tied,
                                  .layers = run.model.n_layers,
                                  .heads = run.model.n_heads,
                                  .head_dim = run.model.head_dim,
                                  .seq_len = run.config.training.seq_len};
  const bool cuda = runtime.device.is_cuda();
  MetricsOptions options;
  const auto& metrics = run.config.metrics;
  options.log_freq = metrics.log_freq;
  options.enable_tensorboard = metrics.enable_tensorboard;
  options.enable_jsonl = metrics.enable_jsonl;
  options.save_for_all_ranks = metrics.save_for_all_ranks;
  options.disable_color_printing = metrics.disable_color_printing;
  options.save_tb_folder = metrics.save_tb_folder;
  options.dump_folder = run.config.job.dump_folder;
  options.start_time = static_cast<std::time_t>(
      std::stoll(runtime.groups->host().all_gather_text(std::to_string(std::time(nullptr))).front()));
  options.start_step = start_step;
  options.rank = runtime.rank();
  options.prints = rank_prints(runtime.rank());
  options.flops_per_token_square = flops_per_token_square(dimensions);
  options.flops_per_token_causal = flops_per_token_causal(dimensions);
  MetricsSources sources;
  sources.take_peak_memory = [&memory] { return memory.take_peak(); };
  if (cuda) {
    const PeakFlops peak = gpu_peak_flops(runtime.device_name);
    if (!peak.known)
      log_warning("no peak FLOP/s known for {}: MFU is relative to an A100", runtime.device_name);
    options.peak_flops = peak.flops;
  } else {
    const at::ScalarType dtype = sharding_options(run.config.training, runtime.device, nullptr).compute_dtype;
    sources.measure_peak_flops = [dtype] { return measure_gemm_peak(dtype); };
  }
  if (runtime.rank() == 0) {
    write_before_step_1(run, runtime.world_size(), options.start_time);
  }
  auto logger = std::make_unique<MetricsLogger>(options, std::move(sources));
  logger->log_config(to_toml(run.configured));
  log_info("Model {} {} size: {} total parameters", run.config.model.name, run.config.model.flavor,
           python_grouped(static_cast<double>(counts.total), 0));
  return logger;
}

std::unique_ptr<Profiler> make_profiler(const JobConfig::Profiling& profiling, const JobConfig::Job& job,
                                        const Runtime& runtime) {
  ProfilerOptions options;
  options.enable_profiling = profiling.enable_profiling;
  options.save_traces_folder = profiling.save_traces_folder;
  options.profile_freq = profiling.profile_freq;
  options.profiler_active = profiling.profiler_active;
  options.profiler_warmup = profiling.profiler_warmup;
  options.enable_memory_snapshot = profiling.enable_memory_snapshot;
  options.save_memory_snapshot_folder = profiling.save_memory_snapshot_folder;
  options.dump_folder = job.dump_folder;
  options.rank = runtime.rank();
  options.cuda = runtime.device.is_cuda();
  MemorySnapshotHooks hooks;
  if (options.cuda) {
    hooks.start_recording = [](size_t entries) {
      device_library().record_memory_history(static_cast<int>(entries));
    };
    hooks.snapshot_pickle = device_library().memory_snapshot;
  }
  return std::make_unique<Profiler>(options, std::move(hooks));
}

}  // namespace hyperion
