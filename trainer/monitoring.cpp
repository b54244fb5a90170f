#include "trainer/monitoring.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include <ATen/Parallel.h>

#include "base/collective.h"
#include "base/counted.h"
#include "base/device/device_library.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "models/description.h"
#include "models/flavors/registry.h"
#include "parallel/job/sockets.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/input_path.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/data/source_report.h"
#include "trainer/data/text_rate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/gemm_peak.h"
#include "trainer/metrics/memory.h"
#include "trainer/metrics/metrics_server.h"
#include "trainer/metrics/run_folder.h"
#include "trainer/metrics/run_summary.h"
#include "trainer/metrics/step_line.h"
#include "trainer/metrics/tracking.h"
#include "trainer/plan/sharding_advice.h"
#include "trainer/preflight.h"
#include "trainer/runtime/version.h"

namespace hyperion::trainer {
namespace {

constexpr const char* kSeedKey = "debug.seed";

// Returns the origin of the run's seed: kSeedKey, or a description.
std::string seed_origin(const RunDescription& run) {
  if (run.seed != run.job.seed) return "saved in the checkpoint";
  return run.job.configured.config.debug.seed ? kSeedKey : "chosen by rank 0";
}

// Returns the configuration that the run follows: the user's, with the saved values that a resume keeps
// (checkpoint.on_config_change, the curve's length) and the seed. A curve length that the user did not set
// stays unset if it equals training.steps.
std::string recorded_toml(const RunDescription& run) {
  const config::ResolvedConfig& configured = run.job.configured;
  config::JobConfig followed = run.config;
  auto& total_steps = followed.lr_scheduler.total_steps;
  if (!configured.config.lr_scheduler.total_steps && total_steps == followed.training.steps)
    total_steps.reset();
  config::ResolvedConfig recorded = checkpointing::followed_config(configured, followed);
  if (recorded.config.debug.seed || run.seed <= std::numeric_limits<int64_t>::max()) {  // TOML's largest
    recorded.config.debug.seed = static_cast<int64_t>(run.seed);
    if (seed_origin(run) != kSeedKey) recorded.origins[kSeedKey] = seed_origin(run);
  }
  return config::to_toml(recorded, hugging_face::dimensions_of(recorded.config.model));
}

// Rank 0 writes the record of the run; returns the name of its folder. A job that cannot write it runs no
// step, as with its first checkpoint.
std::string write_before_step_1(const RunDescription& run, int64_t start_time) {
  const std::filesystem::path folder = run.config.job.dump_folder;
  const Runtime& runtime = run.job.runtime;
  const std::filesystem::path record = metrics::write_run_record(
      folder, {.resolved_toml = recorded_toml(run),
               .command = run.command,
               .config_file = run.config.job.config_file.value_or(""),
               .devices = fmt::format("{} x {}", runtime.world_size(), runtime.device_name),
               .versions = version_text(),
               .world_size = runtime.world_size(),
               .start_time = start_time});
  if (run.config.job.save_config_file) {
    const std::filesystem::path file = folder / *run.config.job.save_config_file;
    make_folders(file.parent_path());
    config::JobConfig recorded = run.config;
    if (recorded.debug.seed) recorded.debug.seed = static_cast<int64_t>(run.seed);  // a saved one may win
    write_file_atomic(file, config::to_json(recorded) + "\n");
  }
  return record.filename().string();
}

metrics::TrackedRun tracked_run(const RunDescription& run, const std::string& id) {
  return {run.config.job.dump_folder, id, config::install_root()};
}

// The start time and id of this run, equal on all ranks.
struct RunStart {
  std::time_t time = 0;
  std::string id;
  static auto members(auto& self) { return std::tie(self.time, self.id); }
};

// Rank 0 writes, and the other ranks receive the result. Rank 0's `prometheus` listens, if a port is
// configured. Collective.
RunStart start_run(const RunDescription& run, Descriptor& prometheus) {
  const Runtime& runtime = run.job.runtime;
  return from_rank_0(runtime.groups->host(), [&] {
    const std::time_t now = std::time(nullptr);
    const config::JobConfig::Metrics& options = run.config.metrics;
    if (options.prometheus_port > 0)
      prometheus =
          metrics::listen_for_prometheus(options.prometheus_host, static_cast<int>(options.prometheus_port));
    if (run.config.metrics.enable_jsonl)
      metrics::require_no_writer(std::filesystem::path(run.config.job.dump_folder) / metrics::kMetricsFile);
    metrics::require_trackers(run.config.metrics, tracked_run(run, ""));
    try {
      return RunStart{now, write_before_step_1(run, now)};
    } catch (const Error& error) {
      if (error.code() != ExitCode::kSaveFailed) throw;
      throw_pre_checkpoint(
          "the record of the run cannot be written, so no step was made: {}; see to "
          "job.dump_folder",
          error.what());
    }
  });
}

int64_t starts_in(const std::filesystem::path& dump_folder) {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator(dump_folder / "runs", error),
                       std::filesystem::directory_iterator());
}

void serve_prometheus(const RunDescription& run, Descriptor listener, const metrics::MeasuredRun& measured,
                      const checkpointing::TrainState& start, metrics::MetricsLogger& logger) {
  const std::string& host = run.config.metrics.prometheus_host;
  const bool loopback = parallel::is_loopback(listener.get());
  logger.serve_prometheus(std::move(listener), {.run_id = measured.run_id,
                                                .ranks = run.job.runtime.world_size(),
                                                .start_step = start.step,
                                                .total_steps = measured.total_steps,
                                                .tokens_seen = start.tokens_seen,
                                                .starts = starts_in(measured.dump_folder),
                                                .start_time = static_cast<double>(measured.start_time)});
  log_info("Prometheus: http://{}:{}/metrics{}", host.find(':') == host.npos ? host : "[" + host + "]",
           run.config.metrics.prometheus_port,
           loopback ? "" : " (whoever reaches this address can read it: there is no password)");
}

// Returns whether the job continues nothing in its folder: it does not resume from a checkpoint there, the
// run is not finished, and the launcher has not restarted its processes.
bool starts_anew(const RunDescription& run, const checkpointing::Checkpointer& checkpointer) {
  const checkpointing::ChosenCheckpoint* chosen = checkpointer.chosen();
  const bool resumes = chosen != nullptr && chosen->source == checkpointing::LoadSource::kOwn;
  return !resumes && !checkpointer.finished() && run.job.runtime.environment.restart_count == 0;
}

// Measures whether tokenizer threads can feed the GPUs; nullopt on a CPU and for token files.
std::optional<TextRate> measure_text_rate(const RunDescription& run) {
  constexpr double kUtilisation = 0.4;  // of the peak: what a well-tuned training reaches
  const Runtime& runtime = run.job.runtime;
  if (!runtime.device.is_cuda()) return std::nullopt;
  const std::vector<std::string> documents = sample_of_text(run.config);
  if (documents.empty()) return std::nullopt;
  const double flops_per_token =
      metrics::flops_per_token_causal(models::describe_model(run.job.model), run.config.training.seq_len);
  const int batch_degree = runtime.mesh->degree(parallel::MeshDim::kBatch);
  const double flops =
      metrics::gpu_peak_flops(runtime.device_name).flops * runtime.world_size() / batch_degree;
  return TextRate{tokenizer_rate(*run.job.data.tokenizer, documents), kUtilisation * flops / flops_per_token,
                  batch_degree, run.job.loader->tokenising_ranks()};
}

// Logs the share of each source, and when those with max_epochs end. The rank that prints measures them.
void describe_sources(const RunDescription& run, config::TrainedSoFar trained) {
  const auto sources = run.job.loader->state().named_sources();
  if (sources.empty() || !run.job.runtime.prints) return;
  std::string shares;
  for (const data::SourceState& source : sources)
    shares +=
        fmt::format("{}{} {:.3g} %", shares.empty() ? "" : ", ", source.name,
                    100 * static_cast<double>(source.share) / static_cast<double>(data::SourceMix::kWhole));
  log_info("Sources: {} of the sequences", shares);
  const config::BatchSchedule batches(run.config.training,
                                      run.job.runtime.mesh->degree(parallel::MeshDim::kBatch), trained);
  for (const std::string& line : explain_source_ends(run.config, *run.job.loader, *run.job.data.tokenizer,
                                                     {batches, trained.steps + 1}))
    log_info("{}", line);
}

// Returns the FLOP/s that the step line's mfu refers to.
double peak_flops(const config::JobConfig::Training& training, const Runtime& runtime) {
  if (runtime.device.is_cuda()) {
    const metrics::PeakFlops peak = metrics::gpu_peak_flops(runtime.device_name);
    if (peak.known) {
      log_info("mfu is a share of {:.0f} TFLOP/s, the dense bfloat16 peak of {}", peak.flops / 1e12,
               runtime.device_name);
    } else {
      log_warning("no peak FLOP/s known for {}: mfu is a share of the {:.0f} TFLOP/s of an A100",
                  runtime.device_name, peak.flops / 1e12);
    }
    return peak.flops;
  }
  const double peak = metrics::measure_gemm_peak(checkpointing::scalar_type(training.mixed_precision_param));
  const int threads = at::get_num_threads();
  log_info(
      "mfu is a share of {:.3f} TFLOP/s, the fastest matrix product measured just now on this rank's {} "
      "(on a busy machine that is less than the CPU can do)",
      peak / 1e12, counted(threads, "CPU thread"));
  return peak;
}

}  // namespace

std::unique_ptr<metrics::MetricsLogger> make_metrics(const RunDescription& run,
                                                     const checkpointing::Checkpointer& checkpointer,
                                                     const checkpointing::TrainState& start) {
  const Runtime& runtime = run.job.runtime;
  const models::ModelArgs& model = run.job.model;
  const models::ModelDescription description = models::describe_model(model);
  const auto memory = std::make_shared<metrics::MemoryMonitor>(
      runtime.device.is_cuda() ? runtime.device.index() : metrics::MemoryMonitor::kCpu);
  const models::ParameterCounts counts = models::count_parameters(description);
  config::JobConfig::Metrics options = run.config.metrics;
  const bool dry_run = config::is_dry_run(run.config);
  if (dry_run) options.enable_tensorboard = options.enable_jsonl = false;
  Descriptor prometheus;
  RunStart run_start = dry_run ? RunStart{std::time(nullptr), ""} : start_run(run, prometheus);
  metrics::MeasuredRun measured{
      .dump_folder = run.config.job.dump_folder,
      .start_time = run_start.time,
      .run_id = std::move(run_start.id),
      .start_step = start.step,
      .starts_anew = starts_anew(run, checkpointer),
      .total_steps = run.config.training.steps,
      .rank = runtime.rank(),
      .prints = runtime.prints,
      .dry_run = dry_run,
      .batch_ranks = runtime.mesh->degree(parallel::MeshDim::kBatch),
      .non_data_parallel_size = runtime.world_size() / runtime.mesh->degree(parallel::MeshDim::kBatch),
      .flops_per_token_square = metrics::flops_per_token_square(description, run.config.training.seq_len),
      .flops_per_token_causal = metrics::flops_per_token_causal(description, run.config.training.seq_len)};
  if (!run.config.training.global_batch_ramp.empty())
    measured.sequences_of_steps = [batches = config::BatchSchedule(run.config.training, measured.batch_ranks,
                                                                   {start.step, start.tokens_seen})](
                                      int64_t from, int64_t to) {
      return static_cast<double>(batches.sequences_up_to(to) - batches.sequences_up_to(from));
    };
  metrics::MetricsSources sources;
  sources.take_peak_memory = [memory] { return memory->take_peak(); };
  if (dry_run)
    log_info("mfu is 0: a dry run exchanges nothing, so its speed is not that of the job");
  else if (measured.prints || metrics::rank_writes_metrics(options, measured.rank))
    measured.peak_flops = peak_flops(run.config.training, runtime);
  if (measured.prints || metrics::rank_writes_metrics(options, measured.rank)) {
    if (const std::optional<TextRate> text = measure_text_rate(run)) {
      measured.tokenizer_rate = text->available();
      if (measured.prints)
        text->suffices() ? log_info("{}", text->describe()) : log_warning("{}", text->describe());
    }
  }
  auto logger = std::make_unique<metrics::MetricsLogger>(options, measured, std::move(sources));
  if (measured.rank == 0 && !dry_run) metrics::start_trackers(options, tracked_run(run, measured.run_id));
  logger->log_config(recorded_toml(run));
  if (prometheus) serve_prometheus(run, std::move(prometheus), measured, start, *logger);
  log_info("Model {} {} size: {} total parameters", run.config.model.name, run.config.model.flavor,
           metrics::python_grouped(static_cast<double>(counts.total), 0));
  if (model.experts.are_present())
    log_info(
        "Experts: {} in {} of {} blocks, {} of them for each token{}; {} active parameters",
        model.experts.num_experts, model.experts.blocks(model.n_layers), model.n_layers, model.experts.top_k,
        model.experts.num_shared_experts > 0 ? fmt::format(" and {} shared", model.experts.num_shared_experts)
                                             : "",
        metrics::python_grouped(static_cast<double>(counts.active), 0));
  if (const int ranks = runtime.mesh->degree(parallel::MeshDim::kEp); ranks > 1)
    log_info("Expert parallelism: groups of {} ranks with {} each, sharded over {}{}", ranks,
             counted(model.experts.num_experts / ranks, "expert"),
             counted(runtime.mesh->degree(parallel::MeshDim::kEfsdp), "rank"),
             runtime.mesh->degree(parallel::MeshDim::kEtp) > 1 ? "; each sharded over tp" : "");
  if (!measured.run_id.empty())  // a dry run has none
    log_info("Run {}: its record is in {}", measured.run_id,
             (measured.dump_folder / "runs" / measured.run_id).string());
  return logger;
}

void log_start(const RunDescription& run, const checkpointing::Checkpointer& checkpointer,
               const checkpointing::TrainState& state, metrics::MetricsLogger& metrics) {
  const Runtime& runtime = run.job.runtime;
  for (const std::string& line :
       metrics::run_summary(run.config, {runtime.device_name, at::get_num_threads(), runtime.mesh->describe(),
                                         runtime.mesh->degree(parallel::MeshDim::kBatch)}))
    log_info("{}", line);
  for (const std::string& warning :
       sharding_advice(run.config, run.job.model, *runtime.mesh, runtime.environment.local_world_size))
    log_warning("{}", warning);
  const checkpointing::ChosenCheckpoint* chosen = checkpointer.chosen();
  const bool loads_weights = chosen != nullptr && chosen->components.contains(checkpoint::kModelComponent);
  for (const std::string& warning :
       start_warnings(run.config, run.job.model, loads_weights || checkpointer.finished()))
    log_warning("{}", warning);
  describe_sources(run, {state.step, state.tokens_seen});
  log_info("Seed: {} ({})", run.seed, seed_origin(run));
  for (const std::string& line : runtime.groups->network()) log_info("{}", line);
  metrics::JsonFields start = {
      {"steps", run.config.training.steps},
      {"ranks", int64_t{runtime.world_size()}},
      {"seed", std::to_string(run.seed)}};  // text: many JSON readers keep 53 bits only
  if (chosen != nullptr) {
    const bool own = chosen->source == checkpointing::LoadSource::kOwn;
    start.emplace_back(own ? "resumed_from" : "initial_load_path", chosen->path.string());
  }
  metrics.event(state.step, "start", start);
  if (checkpointer.finished()) return;
  if (const auto problem = hugging_face::export_problem(run.job.model))
    log_info("This model cannot be exported to Hugging Face (by ckpt convert or last_save_in_hf): {}",
             problem->text);
  if (!loads_weights)  // else the load has said so
    log_info("Weights: initialised at random (seed {})", run.seed);
}

std::unique_ptr<metrics::Profiler> make_profiler(const config::JobConfig::Profiling& profiling,
                                                 const config::JobConfig::Job& job, const Runtime& runtime,
                                                 int64_t start_step) {
  const metrics::ProfiledRun run{.dump_folder = job.dump_folder,
                                 .rank = runtime.rank(),
                                 .cuda = runtime.device.is_cuda(),
                                 .start_step = start_step};
  metrics::MemorySnapshotHooks hooks;
  if (run.cuda) {
    hooks.start_recording = [](size_t entries) {
      device_library().record_memory_history(static_cast<int>(entries));
    };
    hooks.snapshot_pickle = device_library().memory_snapshot;
  }
  return std::make_unique<metrics::Profiler>(profiling, run, std::move(hooks));
}

}  // namespace hyperion::trainer
