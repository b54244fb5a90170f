// What is decided before anything is allocated on a device: the configuration as a whole, the data's place,
// and what a start takes from a checkpoint. A job goes through it first; `hyperion check` goes through it and
// ends.
#pragma once

#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/checkpointing/start.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/data/job_data.h"

namespace hyperion::trainer {

// What a job knows beyond its configuration, before the tokenizer is loaded.
config::RunContext run_facts(const models::ModelArgs& model, int64_t world_size);
// The steps of checked_data(), which `hyperion check` makes one by one: the keys against each other and
// against `facts`; the tokenizer, with what an export would take from it and (where `facts.model` is known)
// the size of its vocabulary.
void check_keys(const config::ResolvedConfig& resolved, const config::RunContext& facts);
DataSetup checked_tokenizer(const config::ResolvedConfig& resolved, config::RunContext facts);

// Checks the whole configuration for a job of `world_size` ranks, with the tokenizer it names, which is
// returned. Throws Error(kUsage) or Error(kBadData).
DataSetup checked_data(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                       int64_t world_size);

// What is worth a warning when a job starts. `loads_weights`: they come from a checkpoint.
std::vector<std::string> start_warnings(const config::JobConfig& config, const models::ModelArgs& model,
                                        bool loads_weights);

// What the checkpoints of this job say about it.
checkpointing::JobRecord job_record(const config::ResolvedConfig& resolved, const DataSetup& data);

// The model that a job with this configuration trains.
models::ModelArgs job_model(const config::JobConfig& config);
// The order of its steps in a pipeline. Throws Error(kUsage) as plan_pipeline() does.
std::optional<PipelinePlan> job_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                         const parallel::Mesh& mesh);

// Of `rank`, for its loaders.
LoaderContext loader_context(const parallel::Mesh& mesh, int rank, uint64_t seed,
                             const models::ModelArgs& model);

// Throws IncompatibleCheckpoint for a checkpoint of another model, Error(kUsage) for one of another
// tokenizer.
void require_checkpoint_of_job(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                               const checkpointing::JobRecord& record,
                               const checkpointing::ChosenCheckpoint& chosen);

// What this run follows: its configuration, and the trajectory of the checkpoint it continues (null: none).
// `seed`: the configured one; `data`: DataLoader::fingerprint(); `record`: job_record(). Throws Error(kUsage)
// as resume_plan() does, and what require_checkpoint_of_job() throws.
checkpointing::ResumePlan plan_run(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                                   const parallel::Mesh& mesh, uint64_t seed, uint64_t data,
                                   const checkpointing::JobRecord& record,
                                   const checkpointing::ChosenCheckpoint* chosen);

}  // namespace hyperion::trainer
