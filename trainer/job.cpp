#include "trainer/job.h"

#include <random>

#include "base/collective.h"
#include "base/log.h"
#include "parallel/comm/agreement.h"
#include "trainer/build/peak_memory.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/fit_ranks.h"
#include "trainer/config/validate.h"
#include "trainer/metrics/gemm_peak.h"
#include "trainer/metrics/slow_steps.h"
#include "trainer/preflight.h"

namespace hyperion::trainer {
namespace {

// Returns debug.seed, or a random seed of rank 0.
uint64_t common_seed(const config::JobConfig& config, const Runtime& runtime) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  return from_rank_0(runtime.groups->host(), [] {
    std::random_device device;  // a seed that debug.seed can be set to
    return ((uint64_t{device()} << 32) | device()) >> 1;
  });
}

// Logs slow_step_warning() on CPU ranks that print. Measures this CPU's peak only if it may matter.
void warn_of_slow_steps(const config::JobConfig& config, const models::ModelArgs& model,
                        const Runtime& runtime) {
  constexpr double kSlowCpu = 1e10;  // FLOP/s that every CPU has
  if (runtime.device.is_cuda() || !runtime.prints) return;
  const int64_t microbatches =
      config::microbatches_of(config.training, runtime.mesh->degree(parallel::MeshDim::kBatch));
  if (!metrics::slow_step_warning(config, model, microbatches, kSlowCpu)) return;
  const double peak =
      metrics::measure_gemm_peak(checkpointing::scalar_type(config.training.mixed_precision_param));
  if (const auto warning = metrics::slow_step_warning(config, model, microbatches, peak))
    log_warning("{}", *warning);
}

// Collective.
std::unique_ptr<data::DataLoader> configured_loader(const config::JobConfig& config, const Job& job,
                                                    uint64_t seed) {
  return training_loader(config, job.data,
                         loader_context(*job.runtime.mesh, job.runtime.rank(), seed, job.model),
                         config::is_dry_run(config) ? nullptr : &job.runtime.groups->host());
}

}  // namespace

Job start_job(const config::ResolvedConfig& resolved) {
  Job job;
  const parallel::Environment environment = job_environment(resolved.config);
  config::FittedConfig fitted = config::fit_to_ranks(resolved, environment.world_size);
  if (!fitted.change.empty()) log_warning("{}", fitted.change);
  job.configured = std::move(fitted.resolved);
  const config::JobConfig& config = job.configured.config;
  job.model = job_model(config);
  // A dry run lacks the routing of other ranks, so it balances the experts round robin.
  if (config::is_dry_run(config)) job.model.experts.force_load_balance = true;
  // A job that cannot run is refused before a device is touched.
  job.data = checked_data(job.configured, job.model, environment);
  require_numbering_by_node(config, environment);
  parallel::set_phase("plan of the mesh");
  const parallel::Mesh mesh(mesh_config(config, environment.local_world_size), environment.world_size);
  job.pipeline = job_pipeline(config, job.model, mesh);
  const bool pipelined = job.pipeline.has_value();
  const auto largest = [&](bool on_gpu) {
    return largest_replayed_size(config, job.model, mesh, job.pipeline, on_gpu);
  };
  job.runtime = start_runtime(job.configured, environment, largest,
                              pipelined ? job.pipeline->tied_ranks : std::nullopt);
  parallel::set_phase("start of the data loader");
  warn_of_slow_steps(config, job.model, job.runtime);
  job.seed = common_seed(config, job.runtime);
  job.loader = configured_loader(config, job, job.seed);
  job.record = job_record(job.configured, job.data);
  // Differences between the ranks are found before the values are used.
  parallel::require_agreement(job.runtime.groups->host(),
                              {{"seed", std::to_string(job.seed)},
                               {"data", std::to_string(job.loader->fingerprint())},
                               {"tokenizer", job.data.tokenizer->hash()},
                               {"pipeline schedule", pipelined ? job.pipeline->pipeline.listed : ""}});
  return job;
}

void follow_plan(Job& job, const checkpointing::ResumePlan& plan) {
  if (!keeps_saved_values(job.configured.config, plan)) {
    if (plan.seed != job.seed) job.loader->reset(plan.seed);
    return;
  }
  const parallel::Mesh& mesh = *job.runtime.mesh;
  job.pipeline = job_pipeline(plan.config, job.model, mesh);
  require_memory_of_rank(
      checkpointing::followed_config(job.configured, plan.config),
      largest_replayed_size(plan.config, job.model, mesh, job.pipeline, job.runtime.device.is_cuda()),
      job.runtime.environment, job.runtime.device);
  job.loader.reset();  // before its node's memory is made once more
  job.loader = configured_loader(plan.config, job, plan.seed);
}

}  // namespace hyperion::trainer
