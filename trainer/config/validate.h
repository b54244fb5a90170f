// Checks keys against each other before any device is touched. It uses arithmetic and file names only;
// RunContext carries the run's other facts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/flavors/registry.h"
#include "trainer/config/load.h"

namespace hyperion::config {

// Facts that are not known (yet) stay unset, and their checks are skipped.
struct RunContext {
  std::optional<int64_t> world_size;
  std::optional<int64_t> ranks_per_node;                   // LOCAL_WORLD_SIZE of the launcher
  std::optional<models::ModelArgs> model;                  // with [model.args] applied
  std::optional<models::DimensionProblem> export_problem;  // of an export to Hugging Face
  std::optional<int64_t> tokenizer_vocab_size;
};

// Adds to `problems` the unavailable features that are switched on, and keys that contradict each other or
// the facts.
void check_config(const ResolvedConfig& resolved, const RunContext& facts, Problems& problems);

// Adds a problem if the path of `key` (model.hf_assets_path, training.dataset_path or
// validation.dataset_path) is needed and is unset or does not exist. `base` is as for resolve_input().
void check_input(const ResolvedConfig& resolved, const char* key, const std::filesystem::path& base,
                 Problems& problems);

// Throws Error(kUsage) with all problems that check_config() and, if `base` is given, check_input() of every
// path find.
void require_valid_config(const ResolvedConfig& resolved, const RunContext& facts,
                          const std::optional<std::filesystem::path>& base = {});

// Returns the keys that the job sets without effect here, in the schema's order, to be logged once.
std::vector<std::string> keys_without_effect(const ResolvedConfig& resolved);

// Returns warnings about keys of a dimension of parallelism whose degree is 1.
std::vector<std::string> keys_of_parallelism_without_effect(const ResolvedConfig& resolved);

// Returns whether training reads the default corpus: dataset c4_test without dataset_path.
bool uses_default_corpus(const JobConfig& config);
// Returns whether validation reads the novel held out of the default corpus: dataset c4_test, or
// c4_validation while training reads the default corpus, without dataset_path.
bool validates_on_default_corpus(const JobConfig& config);

// Returns N if selective activation checkpointing fully recomputes every Nth block; nullopt if it saves the
// outputs of expensive operations ("op").
std::optional<int64_t> checkpointed_blocks(const JobConfig::ActivationCheckpoint& options);

// Returns the number of data-parallel ranks: the world size divided by pp, cp and tp. The mesh must fit
// (check_config()).
int64_t data_parallel_degree(const JobConfig& config, int64_t world_size);

// Returns whether expert parallelism shards the experts (expert_parallel_degree); false for a dense model.
bool divides_experts(const JobConfig& config);

// Returns whether context parallel ranks pass keys and values in a ring (context_parallel_rotate_method =
// "alltoall"); false with document masks.
bool passes_keys_in_ring(const JobConfig& config);

// Returns whether comm.mode is "fake_backend". A dry run communicates with no other rank, so its results are
// meaningless: it loads and saves no checkpoint and writes no metrics and no record of the run.
bool is_dry_run(const JobConfig& config);

// Returns the sequences per microbatch: all `rows` of a batch, or the pipeline's microbatch size.
int64_t microbatch_rows(const JobConfig& config, int64_t rows);
// Returns whether each rank sums its microbatches' gradients before reducing them, because the user asks for
// it or because a pipeline gathers a stage's weights for several microbatches.
bool reduces_gradients_once(const JobConfig& config);
// Returns the number of microbatches of local_batch_size sequences per data-parallel rank and step; of a
// ramp, that of its largest batch (batch_ramp.h has each step's).
int64_t microbatches_of(const JobConfig::Training& training, int64_t data_parallel_degree);
// Returns the sequences of a step, or of a ramp's largest step.
int64_t global_batch_of(const JobConfig::Training& training, int64_t data_parallel_degree);

}  // namespace hyperion::config
