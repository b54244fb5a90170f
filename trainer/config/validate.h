// Checks that involve more than one key, made before any device is touched. Pure arithmetic and file names:
// what a run knows beyond the configuration comes in as RunContext.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/flavors/registry.h"
#include "trainer/config/load.h"

namespace hyperion::config {

// What is not known (yet) stays unset, and the checks that need it are left out.
struct RunContext {
  std::optional<int64_t> world_size;
  std::optional<models::ModelArgs> model;                  // after [model.args]
  std::optional<models::DimensionProblem> export_problem;  // why Hugging Face's formats cannot hold the model
  std::optional<int64_t> tokenizer_vocab_size;
};

// Adds to `problems`: switched-on features that are not available, and keys that contradict each other or the
// facts.
void check_config(const ResolvedConfig& resolved, const RunContext& facts, Problems& problems);

// Adds to `problems`: that the path of `key` (model.hf_assets_path, training.dataset_path or
// validation.dataset_path) is needed and is not set or does not exist. `base` as for resolve_input.
void check_input(const ResolvedConfig& resolved, const char* key, const std::filesystem::path& base,
                 Problems& problems);

// Throws Error(kUsage) with all that check_config() and, where `base` is given, check_input() of every path
// find.
void require_valid_config(const ResolvedConfig& resolved, const RunContext& facts,
                          const std::optional<std::filesystem::path>& base = {});

// Keys that the job sets but that have no effect here, in the schema's order: to be logged once.
std::vector<std::string> keys_without_effect(const ResolvedConfig& resolved);

// Sentences for warnings about keys of a dimension of parallelism that ask for something where its degree
// is 1.
std::vector<std::string> keys_of_parallelism_without_effect(const ResolvedConfig& resolved);

// The default corpus is trained on: dataset c4_test without dataset_path.
bool uses_default_corpus(const JobConfig& config);
// Validation reads the novel held out of the default corpus: dataset c4_test, or c4_validation while
// training reads the default corpus, without dataset_path.
bool validates_on_default_corpus(const JobConfig& config);

// Under selective activation checkpointing every Nth block is recomputed in full; nothing: expensive
// operations are saved ("op").
std::optional<int64_t> checkpointed_blocks(const JobConfig::ActivationCheckpoint& options);

// Data-parallel ranks: the world without pp, cp and tp. Only for a configuration whose mesh fits
// (check_config()).
int64_t data_parallel_degree(const JobConfig& config, int64_t world_size);

// Whether ranks divide the experts (expert_parallel_degree), of which a dense model has none.
bool divides_experts(const JobConfig& config);

// Whether keys and values of ranks that share sequences go round in a ring
// (context_parallel_rotate_method = "alltoall"), which they do not where there are documents.
bool passes_keys_in_ring(const JobConfig& config);

// comm.mode = "fake_backend": nothing is exchanged with the other ranks, so what is computed means nothing
// and none of it is kept. No checkpoint is loaded or saved, no metrics and no record of the run are written.
bool is_dry_run(const JobConfig& config);

// Sequences of a microbatch: all of a batch's `rows`, or those of a pipeline's.
int64_t microbatch_rows(const JobConfig& config, int64_t rows);
// Whether each rank adds its microbatches' gradients up before they are reduced: as the user asks, or in a
// pipeline that gathers a stage's weights for several microbatches.
bool reduces_gradients_once(const JobConfig& config);
// How many microbatches of local_batch_size sequences each data-parallel rank has in a step.
int64_t microbatches_of(const JobConfig::Training& training, int64_t data_parallel_degree);

}  // namespace hyperion::config
