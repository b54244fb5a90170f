#include "trainer/config/validate.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/box.h"
#include "base/counted.h"
#include "base/durable.h"
#include "trainer/config/features.h"
#include "trainer/config/input_path.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate_checkpoint.h"

namespace hyperion::config {
namespace fs = std::filesystem;
namespace {

// Whether the degrees fit the world: their product divides it, and equals it unless
// data_parallel_shard_degree is -1.
bool mesh_fits(const JobConfig::Parallelism& p, int64_t world) {
  int64_t left = world;
  for (const int64_t degree :
       {p.pipeline_parallel_degree, p.data_parallel_replicate_degree, p.context_parallel_degree,
        p.tensor_parallel_degree, std::max<int64_t>(p.data_parallel_shard_degree, 1)}) {
    if (left % degree != 0) return false;
    left /= degree;
  }
  return p.data_parallel_shard_degree == -1 || left == 1;
}

void check_features(const ResolvedConfig& resolved, Problems& problems) {
  for (const Feature* feature : features()) {
    if (!feature->refusal.empty() && feature->on(resolved.config))
      problems.add(resolved, feature->key, feature->refusal);
  }
}

void check_mesh_and_batch(const ResolvedConfig& resolved, int64_t world, Problems& problems) {
  const auto& p = resolved.config.parallelism;
  if (!mesh_fits(p, world)) {
    problems.add(
        resolved, "parallelism.data_parallel_shard_degree",
        fmt::format("pipeline {} x replicate {} x shard {} x context {} x tensor {} must be the {} of "
                    "the job{}",
                    p.pipeline_parallel_degree, p.data_parallel_replicate_degree,
                    p.data_parallel_shard_degree, p.context_parallel_degree, p.tensor_parallel_degree,
                    counted(world, "rank"),
                    p.data_parallel_shard_degree == -1 ? ", or divide them where shard is -1" : ""));
    return;
  }
  const auto& t = resolved.config.training;
  const int64_t microbatch = t.local_batch_size * data_parallel_degree(resolved.config, world);
  if (t.global_batch_size != -1 && t.global_batch_size % microbatch != 0) {
    problems.add(
        resolved, "training.global_batch_size",
        fmt::format("expected a multiple of {} (local_batch_size {} x {} data-parallel ranks), or -1",
                    microbatch, t.local_batch_size, microbatch / t.local_batch_size));
  }
}

// `positions`: of the model, where they are known.
void check_lengths(const ResolvedConfig& resolved, std::optional<int64_t> positions, Problems& problems) {
  const JobConfig& config = resolved.config;
  const int64_t tp = config.parallelism.tensor_parallel_degree,
                cp = config.parallelism.context_parallel_degree;
  const int64_t divisor = tp * (cp > 1 ? 2 * cp : 1);
  const auto check_length = [&](const char* key, int64_t length) {
    if (length % divisor != 0) {
      problems.add(resolved, key,
                   fmt::format("expected a multiple of {} (tensor x 2 context, by the degrees)", divisor));
    }
    if (positions && *positions < length) {
      problems.add(resolved, key,
                   config.model.args.max_seq_len
                       ? fmt::format("expected at most model.args.max_seq_len = {}", *positions)
                       : fmt::format("expected at most the {} positions of {} {}; to train on more set "
                                     "model.args.max_seq_len = {}",
                                     *positions, config.model.name, config.model.flavor, length));
    }
  };
  check_length("training.seq_len", config.training.seq_len);
  if (config.validation.enable) check_length("validation.seq_len", config.validation.seq_len);
}

// The update is computed in fp32: what is in range as written may not be there.
void check_optimizer(const ResolvedConfig& resolved, Problems& problems) {
  const auto& o = resolved.config.optimizer;
  for (const auto& [key, value] :
       {std::pair("optimizer.lr", o.lr), {"optimizer.weight_decay", o.weight_decay}})
    if (value > std::numeric_limits<float>::max())
      problems.add(
          resolved, key,
          "expected at most 3.4e38: a larger number is infinite in fp32, in which the update is computed");
  if (static_cast<float>(o.eps) < std::numeric_limits<float>::min())
    problems.add(
        resolved, "optimizer.eps",
        "expected at least 1.2e-38: a smaller number is 0 in fp32, in which the update is computed, and "
        "weights without a gradient would become NaN");
  for (const auto& [key, beta] : {std::pair("optimizer.beta1", o.beta1), {"optimizer.beta2", o.beta2}})
    if (static_cast<float>(beta) == 1)
      problems.add(
          resolved, key,
          "expected at most 0.9999999: a larger number is 1 in fp32, in which the update is computed, "
          "and its moment would never change");
}

void check_profiling(const ResolvedConfig& resolved, Problems& problems) {
  const auto& p = resolved.config.profiling;
  if (p.enable_profiling &&
      (p.profiler_active > p.profile_freq || p.profiler_warmup > p.profile_freq - p.profiler_active)) {
    problems.add(resolved, "profiling.profile_freq",
                 fmt::format("expected at least profiler_active {} + profiler_warmup {}", p.profiler_active,
                             p.profiler_warmup));
  }
}

void check_validation(const ResolvedConfig& resolved, Problems& problems) {
  const auto& v = resolved.config.validation;
  if (!v.sequences || v.steps == -1) return;
  problems.add(
      resolved, "validation.sequences",
      fmt::format("counts the sequences of all ranks, and validation.steps = {} ({}) the batches per rank: "
                  "set one of them (--validation.sequences None unsets it)",
                  v.steps, resolved.origin("validation.steps")));
}

void check_float8(const ResolvedConfig& resolved, Problems& problems) {
  if (!kFloat8.on(resolved.config)) return;
  if (kMx.on(resolved.config))
    problems.add(
        resolved, "model.converters",
        "expected one of quantize.linear.float8 and quantize.linear.mx, which convert the same layers");
  const auto& f = resolved.config.quantize.linear.float8;
  const std::string prefix = "quantize.linear.float8.";
  const float8::Recipe recipe = f.recipe_name.value_or(float8::Recipe::kTensorwise);
  if (f.enable_fsdp_float8_all_gather && recipe != float8::Recipe::kTensorwise) {
    problems.add(resolved, prefix + "enable_fsdp_float8_all_gather",
                 fmt::format("recipe_name = \"{}\" has a scale for each row, which shards do not share; set "
                             "false, or recipe_name = \"tensorwise\"",
                             text_of(recipe)));
  }
  if (f.precompute_float8_dynamic_scale_for_fsdp && !f.enable_fsdp_float8_all_gather) {
    problems.add(resolved, prefix + "precompute_float8_dynamic_scale_for_fsdp",
                 "expected enable_fsdp_float8_all_gather = true too, whose scales these are");
  }
}

void check_model(const ResolvedConfig& resolved, const models::ModelArgs& model, Problems& problems) {
  const int64_t tp = resolved.config.parallelism.tensor_parallel_degree;
  if (tp == 1) return;
  if (model.n_heads % tp != 0 || model.n_kv_heads % tp != 0) {
    problems.add(resolved, "parallelism.tensor_parallel_degree",
                 fmt::format("expected a divisor of {} heads and {} key-value heads", model.n_heads,
                             model.n_kv_heads));
  }
  for (const auto& [what, extent] : {std::pair("the vocabulary's entries", model.vocab_size),
                                     {"the hidden width's columns", model.hidden_dim}})
    if (chunk_of(extent, tp, tp - 1).count == 0)
      problems.add(
          resolved, "parallelism.tensor_parallel_degree",
          fmt::format("expected a degree that leaves every rank a part of {}, which are {}: parts of {} "
                      "are {}; lower the degree",
                      what, extent, chunk_of(extent, tp, 0).count,
                      (extent - 1) / chunk_of(extent, tp, 0).count + 1));
}

void check_vocabulary(const ResolvedConfig& resolved, int64_t model, int64_t tokenizer, Problems& problems) {
  if (model >= tokenizer) return;
  problems.add(
      resolved, "model.hf_assets_path",
      fmt::format("the tokenizer has {} entries, the model only {}; use the model's own tokenizer or set "
                  "model.args.vocab_size = {}",
                  tokenizer, model, tokenizer));
}

void check_datasets(const ResolvedConfig& resolved, Problems& problems) {
  const JobConfig& config = resolved.config;
  if (!config.training.dataset_path && !uses_default_corpus(config)) {
    problems.add(resolved, "training.dataset",
                 "expected training.dataset_path (a file, folder or glob of JSON lines, or a folder of token "
                 "shards) too, because nothing is downloaded; \"c4_test\" alone is the default corpus");
  }
  if (config.validation.enable && !config.validation.dataset_path && !validates_on_default_corpus(config)) {
    problems.add(
        resolved, "validation.dataset",
        "expected validation.dataset_path (a file, folder or glob of JSON lines, or a folder of token "
        "shards) too, because nothing is downloaded; \"c4_test\" alone is the novel held out of the default "
        "corpus");
  }
}

}  // namespace

void check_config(const ResolvedConfig& resolved, const RunFacts& facts, Problems& problems) {
  check_features(resolved, problems);
  if (facts.world_size) check_mesh_and_batch(resolved, *facts.world_size, problems);
  std::optional<int64_t> positions = resolved.config.model.args.max_seq_len;
  if (facts.model) positions = facts.model->max_seq_len;
  check_lengths(resolved, positions, problems);
  check_optimizer(resolved, problems);
  check_profiling(resolved, problems);
  check_validation(resolved, problems);
  check_float8(resolved, problems);
  if (facts.model) check_model(resolved, *facts.model, problems);
  if (facts.model && facts.tokenizer_vocab_size) {
    check_vocabulary(resolved, facts.model->vocab_size, *facts.tokenizer_vocab_size, problems);
  }
  check_datasets(resolved, problems);
  check_checkpoint(resolved, facts, problems);
}

void check_input(const ResolvedConfig& resolved, const char* key, const fs::path& base, Problems& problems) {
  const Value value = read(*find_option(key), resolved.config);
  const auto* path = std::get_if<std::string>(&value);
  const bool needed = path != nullptr && (!std::string_view(key).starts_with("validation.") ||
                                          resolved.config.validation.enable);
  if (!needed) return;
  const fs::path file = resolve_input(*path, base);
  std::error_code error;
  if (!fs::exists(file, error) && error) {
    problems.add(resolved, key, fmt::format("cannot be read: {}", errno_text(error.value())));
  } else if (!matches_a_file(file)) {
    problems.add(resolved, key,
                 fmt::format("no such file or folder, neither in {} nor in {}", fs::current_path().string(),
                             base.string()));
  }
}

void require_valid_config(const ResolvedConfig& resolved, const RunFacts& facts,
                          const std::optional<fs::path>& base) {
  Problems problems;
  check_config(resolved, facts, problems);
  if (base)
    for (const char* key : {"model.hf_assets_path", "training.dataset_path", "validation.dataset_path"})
      check_input(resolved, key, *base, problems);
  problems.throw_if_any("The configuration cannot be run");
}

std::vector<std::string> keys_without_effect(const ResolvedConfig& resolved) {
  std::vector<std::string> keys;
  for (const Option& option : all_options()) {
    const bool active = option.feature == nullptr || option.feature->on(resolved.config);
    // A key set to its default asks for nothing.
    if (option.python_only && active && read(option, resolved.config) != read(option, JobConfig()))
      keys.push_back(option.name);
  }
  return keys;
}

std::vector<std::string> keys_of_parallelism_without_effect(const ResolvedConfig& resolved) {
  std::vector<std::string> warnings;
  for (const Option& option : all_options()) {
    const Feature* degree = option.feature;
    const bool ignored = option.section() == "parallelism" && degree != nullptr &&
                         !degree->on(resolved.config) && option.name != degree->key;
    if (ignored && read(option, resolved.config) != read(option, JobConfig()))
      warnings.push_back(fmt::format("{} = {} ({}) has no effect: {} is 1", option.name,
                                     toml_text(read(option, resolved.config)), resolved.origin(option.name),
                                     degree->key));
  }
  return warnings;
}

bool uses_default_corpus(const JobConfig& config) {
  return config.training.dataset == Dataset::kC4Test && !config.training.dataset_path;
}

bool validates_on_default_corpus(const JobConfig& config) {
  const auto& v = config.validation;
  return !v.dataset_path && (v.dataset == Dataset::kC4Test ||
                             (v.dataset == Dataset::kC4Validation && uses_default_corpus(config)));
}

std::optional<int64_t> checkpointed_blocks(const JobConfig::ActivationCheckpoint& options) {
  if (options.selective_ac_option == "op") return std::nullopt;
  return std::stoll(options.selective_ac_option);  // the schema takes nothing else
}

int64_t data_parallel_degree(const JobConfig& config, int64_t world_size) {
  const auto& p = config.parallelism;
  return world_size / p.pipeline_parallel_degree / p.context_parallel_degree / p.tensor_parallel_degree;
}

bool is_dry_run(const JobConfig& config) {
  return config.comm.mode == CommMode::kFakeBackend;
}

int64_t microbatches_of(const JobConfig::Training& training, int64_t data_parallel_degree) {
  if (training.global_batch_size < 0) return 1;
  return training.global_batch_size / (training.local_batch_size * data_parallel_degree);
}

}  // namespace hyperion::config
