#include "trainer/setup/job.h"

#include <random>

#include "base/collective.h"
#include "parallel/agreement.h"
#include "trainer/config/model_args.h"
#include "trainer/setup/preflight.h"
#include "trainer/setup/slow_steps.h"

namespace hyperion::trainer {
namespace {

// debug.seed, or a random one of rank 0's.
uint64_t common_seed(const JobConfig& config, const Runtime& runtime) {
  if (config.debug.seed) return static_cast<uint64_t>(*config.debug.seed);
  return from_rank_0(runtime.groups->host(), [] {
    std::random_device device;  // a seed that debug.seed can be set to
    return ((uint64_t{device()} << 32) | device()) >> 1;
  });
}

}  // namespace

Job start_job(const ResolvedConfig& resolved) {
  Job job;
  job.configured = resolved;
  const JobConfig& config = job.configured.config;
  job.model = model_args(config.model);
  const parallel::Environment environment = job_environment(config);
  job.data = checked_data(resolved, job.model, environment.world_size);
  job.runtime = start_runtime(resolved, job.model, environment);
  warn_of_slow_steps(config, job.model, job.runtime);
  job.seed = common_seed(config, job.runtime);
  job.loader = training_loader(
      config, job.data, loader_context(*job.runtime.mesh, job.runtime.rank(), job.seed, job.model),
      is_dry_run(config) ? nullptr : data::NodeDocuments::make(job.runtime.groups->host()));
  job.record = job_record(resolved, job.data);
  // What differs between the ranks is found before anything is done with it.
  parallel::require_agreement(job.runtime.groups->host(),
                              {{"seed", std::to_string(job.seed)},
                               {"data", std::to_string(job.loader->fingerprint())},
                               {"tokenizer", job.data.tokenizer->hash()}});
  return job;
}

}  // namespace hyperion::trainer
