// The preflight runs before anything is allocated on a device: it checks the complete configuration and the
// data's files, and decides what a start takes from a checkpoint. Every job runs it first; `hyperion check`
// runs nothing else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/job/environment.h"
#include "parallel/mesh.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/checkpointing/start.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/data/job_data.h"

namespace hyperion::trainer {

// Returns the job's facts beyond its configuration, before the tokenizer is loaded.
// ranks_per_node: unset where the job's ranks are not known.
config::RunContext run_facts(const models::ModelArgs& model, int64_t world_size,
                             std::optional<int64_t> ranks_per_node = {});
// `hyperion check` calls the two steps of checked_data() separately. check_keys() checks the keys against
// each other and against `facts`. checked_tokenizer() checks the tokenizer, the values that an export takes
// from it and, if `facts.model` is known, its vocabulary size.
void check_keys(const config::ResolvedConfig& resolved, const config::RunContext& facts);
DataSetup checked_tokenizer(const config::ResolvedConfig& resolved, config::RunContext facts);

// Checks the complete configuration for the job's ranks, and returns the tokenizer that it names.
// Throws Error(kUsage) or Error(kBadData).
DataSetup checked_data(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                       const parallel::Environment& environment);

// Returns the warnings at the start of a job. `loads_weights` says that the weights come from a checkpoint.
std::vector<std::string> start_warnings(const config::JobConfig& config, const models::ModelArgs& model,
                                        bool loads_weights);

// Returns the record that the job's checkpoints store.
checkpointing::JobRecord job_record(const config::ResolvedConfig& resolved, const DataSetup& data);

// Returns the dimensions of the configured model.
models::ModelArgs job_model(const config::JobConfig& config);
// Returns the plan of the job's pipeline; nullopt without a pipeline. Throws Error(kUsage) as plan_pipeline()
// does.
std::optional<PipelinePlan> job_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh);

// Returns the context of the loaders of `rank`.
LoaderContext loader_context(const parallel::Mesh& mesh, int rank, uint64_t seed,
                             const models::ModelArgs& model);

// Throws IncompatibleCheckpoint for a checkpoint of another model, and Error(kUsage) for a checkpoint with
// another tokenizer.
void require_checkpoint_of_job(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                               const checkpointing::JobRecord& record,
                               const checkpointing::ChosenCheckpoint& chosen);

// Plans the run from its configuration and the checkpoint that it continues (`chosen`, or null). `seed` is
// the configured one, `data` is DataLoader::initial_state(), `record` is job_record(). Throws Error(kUsage)
// as resume_plan() does, and the errors of require_checkpoint_of_job().
checkpointing::ResumePlan plan_run(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                                   const parallel::Mesh& mesh, uint64_t seed, const data::LoaderState& data,
                                   const checkpointing::JobRecord& record,
                                   const checkpointing::ChosenCheckpoint* chosen);

// Returns whether the plan has saved values of which pipeline, memory and loader depend.
bool keeps_saved_values(const config::JobConfig& configured, const checkpointing::ResumePlan& plan);

}  // namespace hyperion::trainer
