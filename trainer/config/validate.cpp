#include "trainer/config/validate.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/box.h"
#include "base/counted.h"
#include "base/durable.h"
#include "models/args/sequence_parts.h"
#include "models/description.h"
#include "trainer/config/batch_ramp.h"
#include "trainer/config/checks.h"
#include "trainer/config/fit_ranks.h"
#include "trainer/config/input_path.h"
#include "trainer/config/mesh_fits.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate_experts.h"
#include "trainer/config/validate_groups.h"
#include "trainer/config/validate_ramp.h"
#include "trainer/config/validate_sources.h"

namespace hyperion::config {
namespace fs = std::filesystem;
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::count(names, name) > 0;
}

class Checks : ChecksOfConfig {
 public:
  using ChecksOfConfig::ChecksOfConfig;

  void refuse_features() {
    for (const Feature* feature : features())
      refuse_if(!feature->refusal.empty() && feature->on(config_), feature->key, feature->refusal);
  }

  void mesh_and_batch() {
    if (!run_.world_size) return;
    const auto& p = config_.parallelism;
    if (!mesh_fits(p, *run_.world_size))
      return refuse(
          "parallelism.data_parallel_shard_degree",
          fmt::format(
              "pipeline {} x replicate {} x shard {} x context {} x tensor {} must be the {} of "
              "the job{}{}",
              p.pipeline_parallel_degree, p.data_parallel_replicate_degree, p.data_parallel_shard_degree,
              p.context_parallel_degree, p.tensor_parallel_degree, counted(*run_.world_size, "rank"),
              p.data_parallel_shard_degree == -1 ? ", or divide them where shard is -1" : "", ways_to_fit()));
    const auto& t = config_.training;
    const int64_t ranks = data_parallel_degree(config_, *run_.world_size);
    const int64_t microbatch = t.local_batch_size * ranks;
    if (t.global_batch_size != -1 && t.global_batch_size % microbatch != 0)
      refuse(
          "training.global_batch_size",
          fmt::format("expected a multiple of {} (local_batch_size {} x {} data-parallel ranks), such as "
                      "{}, or -1{}",
                      microbatch, t.local_batch_size, ranks,
                      listed_or(multiples_near(t.global_batch_size, microbatch)), what_makes_batch(ranks)));
  }

  // Names the numbers of ranks that the mesh allows, and the key that fits the mesh to these.
  std::string ways_to_fit() const {
    const std::vector<int64_t> numbers =
        fitting_ranks(config_, *run_.world_size, common_batch_of(config_.training));
    std::string text = numbers.empty() ? "" : fmt::format("; it can have {}", listed_or(numbers));
    if (config_.parallelism.on_mesh_mismatch == OnMeshMismatch::kError &&
        fit_degrees(config_, *run_.world_size))
      text += "; parallelism.on_mesh_mismatch = \"fit\" changes replicate and shard to fit";
    return text;
  }

  std::string what_makes_batch(int64_t ranks) const {
    const std::string ways = ways_to_batch(config_, ranks, config_.training.global_batch_size);
    return ways.empty() ? "" : fmt::format("; {} can make this batch", ways);
  }

  void context() {
    const auto& p = config_.parallelism;
    if (p.context_parallel_degree == 1) return;
    refuse_if(p.context_parallel_load_balancer == "ptrr", "parallelism.context_parallel_load_balancer",
              "it balances the blocks of flex attention, which is not here; set \"headtail\", or None");
  }

  void lengths() {
    check_length("training.seq_len", config_.training.seq_len);
    if (config_.validation.enable) check_length("validation.seq_len", config_.validation.seq_len);
  }

  // The update is computed in fp32: what is in range as written may not be there.
  void optimizer() {
    const auto& o = config_.optimizer;
    refuse_if(updates_matrices(o.name) && config_.training.enable_cpu_offload, "training.enable_cpu_offload",
              fmt::format("optimizer.name = \"{}\" multiplies matrices on the GPU and takes no states on the "
                          "host: set false",
                          text_of(o.name)));
    refuse_if(
        static_cast<float>(o.muon.momentum) == 1, "optimizer.muon.momentum",
        "expected at most 0.9999999: a larger number is 1 in fp32, and the momentum would never change");
    for (const ParameterGroup& group : o.groups) {
      const OptimizerName asked = group.optimizer.value_or(o.name);
      refuse_if(asked != o.name && updates_matrices(asked), "optimizer.groups",
                fmt::format("a group has optimizer = \"{0}\", which needs optimizer.name = \"{0}\"",
                            text_of(asked)));
    }
    for (const auto& [key, value] :
         {std::pair("optimizer.lr", o.lr), {"optimizer.weight_decay", o.weight_decay}})
      refuse_if(
          value > std::numeric_limits<float>::max(), key,
          "expected at most 3.4e38: a larger number is infinite in fp32, in which the update is computed");
    refuse_if(
        static_cast<float>(o.eps) < std::numeric_limits<float>::min(), "optimizer.eps",
        "expected at least 1.2e-38: a smaller number is 0 in fp32, in which the update is computed, and "
        "weights without a gradient would become NaN");
    for (const auto& [key, decay] : {std::pair("optimizer.beta1", o.beta1),
                                     {"optimizer.beta2", o.beta2},
                                     {"ema.decay", config_.ema.decay}})
      refuse_if(static_cast<float>(decay) == 1, key,
                "expected at most 0.9999999: a larger number is 1 in fp32, in which the update is computed, "
                "and its average would never change");
    refuse_if(static_cast<float>(config_.training.max_norm) < std::numeric_limits<float>::min(),
              "training.max_norm",
              "expected at least 1.2e-38: a smaller number is 0 in fp32, in which gradients are scaled");
    const double z_loss = config_.training.z_loss;
    refuse_if(z_loss != 0 && !(z_loss >= std::numeric_limits<float>::min() && z_loss <= 1), "training.z_loss",
              "expected 0 or 1.2e-38 to 1, in fp32, in which logits are multiplied by it");
  }

  void profiling() {
    const auto& p = config_.profiling;
    refuse_if(p.enable_profiling && (p.profiler_active > p.profile_freq ||
                                     p.profiler_warmup > p.profile_freq - p.profiler_active),
              "profiling.profile_freq",
              fmt::format("expected at least profiler_active {} + profiler_warmup {}", p.profiler_active,
                          p.profiler_warmup));
  }

  void tracking() {
    refuse_if(kTracking.on(config_) && !config_.metrics.enable_jsonl, "metrics.enable_jsonl",
              "enable_wandb, enable_mlflow and alert_command follow metrics.jsonl; set true");
  }

  void validation() {
    const auto& v = config_.validation;
    refuse_if(
        v.sequences && v.steps != -1, "validation.sequences",
        fmt::format("counts the sequences of all ranks, and validation.steps = {} ({}) the batches per rank: "
                    "set one of them (--validation.sequences None unsets it)",
                    v.steps, resolved_.origin("validation.steps")));
  }

  void float8() {
    refuse_if(
        (kFloat8.on(config_) || kGroupedFloat8.on(config_)) && (kMx.on(config_) || kGroupedMx.on(config_)),
        "model.converters",
        "expected FP8 (quantize.linear.float8, quantize.grouped_mm.float8) or MXFP8 (quantize.linear.mx, "
        "quantize.grouped_mm.mx) alone, as torchtitan does");
    if (!kFloat8.on(config_)) return;
    const auto& f = config_.quantize.linear.float8;
    const auto recipe = f.recipe_name.value_or(float8::Recipe::kTensorwise);
    refuse_if(f.enable_fsdp_float8_all_gather && recipe != float8::Recipe::kTensorwise,
              "quantize.linear.float8.enable_fsdp_float8_all_gather",
              fmt::format("recipe_name = \"{}\" has a scale for each row, which shards do not share; set "
                          "false, or recipe_name = \"tensorwise\"",
                          text_of(recipe)));
    refuse_if(f.precompute_float8_dynamic_scale_for_fsdp && !f.enable_fsdp_float8_all_gather,
              "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
              "expected enable_fsdp_float8_all_gather = true too, whose scales these are");
  }

  void model() {
    if (!run_.model) return;
    const models::ModelArgs& model = *run_.model;
    const int64_t vocabulary = run_.tokenizer_vocab_size.value_or(0);
    refuse_if(model.vocab_size < vocabulary, "model.hf_assets_path",
              fmt::format("the tokenizer has {} entries, the model only {}; use the model's own tokenizer or "
                          "set model.args.vocab_size = {}",
                          vocabulary, model.vocab_size, vocabulary));
    check_experts(resolved_, run_, problems_);
    const int64_t tp = config_.parallelism.tensor_parallel_degree;
    if (tp == 1) return;
    const models::ModelDescription description = models::describe_model(model);
    std::vector<models::ShardedExtent> extents = {
        {.what = "the vocabulary's entries", .extent = model.vocab_size}};
    for (const models::BlockDescription& kind : description.kinds)
      for (const models::PartDescription* part : {&kind.attention, &kind.feed_forward})
        for (const models::ShardedExtent& extent : part->extents)
          if (std::ranges::none_of(extents, [&](const models::ShardedExtent& other) {
                return other.what == extent.what && other.extent == extent.extent;
              }))
            extents.push_back(extent);
    std::vector<std::string> evenly;  // "16 heads"
    bool divides = true;
    for (const auto& [what, extent, even] : extents) {
      if (!even) continue;
      evenly.push_back(fmt::format("{} {}", extent, what));
      divides = divides && extent % tp == 0;
    }
    refuse_if(!divides, "parallelism.tensor_parallel_degree",
              fmt::format("expected a divisor of {}", fmt::join(evenly, " and ")));
    for (const auto& [what, extent, even] : extents) {
      const int64_t part = chunk_of(extent, tp, 0).count;
      refuse_if(!even && chunk_of(extent, tp, tp - 1).count == 0, "parallelism.tensor_parallel_degree",
                fmt::format("expected a degree that leaves every rank a part of {}, which are {}: parts of "
                            "{} are {}; lower the degree",
                            what, extent, part, (extent - 1) / part + 1));
    }
  }

  void checkpoints() {
    const auto& c = config_.checkpoint;
    if (c.enable) {
      saving();
      loading();
      components();
    } else {
      refuse_if(c.initial_load_path || c.initial_load_in_hf,
                c.initial_load_path ? "checkpoint.initial_load_path" : "checkpoint.initial_load_in_hf",
                "expected checkpoint.enable = true too: without checkpoints nothing is loaded and the "
                "weights would be random; add checkpoint.load_only = true to load and save nothing");
    }
    refuse_if(config_.ema.enable && config_.ema.validate_with_ema && !config_.validation.enable,
              "ema.validate_with_ema", "expected validation.enable = true too");
  }

 private:
  void check_length(const char* key, int64_t length) {
    const auto& p = config_.parallelism;
    const int64_t cp = p.context_parallel_degree, tp = p.tensor_parallel_degree;
    const bool two = cp > 1 && p.context_parallel_load_balancer.has_value();
    const int64_t divisor = models::length_divisor(cp, two, tp), above = (length / divisor + 1) * divisor;
    refuse_if(length % divisor != 0, key,
              fmt::format("expected a multiple of {} ({}tensor {} x context {}), such as {}{}", divisor,
                          two ? "2 chunks x " : "", tp, cp,
                          length > divisor ? fmt::format("{} or ", above - divisor) : "", above));
    const auto& model = config_.model;
    const std::optional<int64_t> positions =
        run_.model ? std::optional(run_.model->max_seq_len) : model.args.max_seq_len;
    if (!positions || *positions >= length) return;
    refuse(key, model.args.max_seq_len
                    ? fmt::format("expected at most model.args.max_seq_len = {}", *positions)
                    : fmt::format("expected at most the {} positions of {} {}; to train on more set "
                                  "model.args.max_seq_len = {}",
                                  *positions, model.name, model.flavor, length));
  }

  // Returns the origins of the deciding keys: " (model.args.n_heads: job.toml:5:11)".
  std::string model_args_origins(const std::vector<std::string>& keys) const {
    std::vector<std::string> places;
    for (const std::string& key : keys)
      if (const auto found = resolved_.origins.find("model.args." + key); found != resolved_.origins.end())
        places.push_back(fmt::format("{}: {}", found->first, found->second));
    return places.empty() ? "" : fmt::format(" ({})", fmt::join(places, ", "));
  }

  void saving() {
    const auto& c = config_.checkpoint;
    const bool dry_run = config_.comm.mode == CommMode::kFakeBackend;
    const int64_t world = run_.world_size.value_or(1);
    refuse_if(c.create_seed_checkpoint && dry_run, "checkpoint.create_seed_checkpoint",
              "a dry run (comm.mode = \"fake_backend\") saves nothing");
    refuse_if(c.create_seed_checkpoint && !dry_run && world != 1, "checkpoint.create_seed_checkpoint",
              fmt::format("expected a job of one process, not of {}: a seed checkpoint is the same for "
                          "every number of ranks",
                          world));
    refuse_if(c.load_only && c.create_seed_checkpoint, "checkpoint.create_seed_checkpoint",
              "load_only = true saves nothing");
    refuse_if(c.load_only && c.enable_first_step_checkpoint, "checkpoint.enable_first_step_checkpoint",
              "load_only = true saves nothing");
    refuse_if(c.last_save_in_hf && !c.last_save_model_only, "checkpoint.last_save_in_hf",
              fmt::format("expected last_save_model_only = true with it, as safetensors hold weights alone; "
                          "it is false ({})",
                          resolved_.origin("checkpoint.last_save_model_only")));
    refuse_if(c.export_dtype != checkpoint::Dtype::kFloat32 && !c.last_save_model_only,
              "checkpoint.export_dtype",
              "expected last_save_model_only = true too: only a last save of weights alone is converted");
    if (const auto& problem = run_.export_problem; c.last_save_in_hf && problem)
      refuse("checkpoint.last_save_in_hf",
             fmt::format("the model cannot be exported to Hugging Face: {}{}; change that, or set false",
                         problem->text, model_args_origins(problem->keys)));
  }

  void loading() {
    const auto& c = config_.checkpoint;
    refuse_if(c.initial_load_in_hf_quantized && !c.initial_load_in_hf,
              "checkpoint.initial_load_in_hf_quantized",
              "expected initial_load_in_hf = true too: only Hugging Face's safetensors hold such weights");
    refuse_if(c.initial_load_in_hf && !c.initial_load_model_only, "checkpoint.initial_load_in_hf",
              "expected initial_load_model_only = true too: safetensors hold weights alone");
    if (c.resume_mode == ResumeMode::kTransfer) {
      refuse_if(!c.initial_load_path && !c.initial_load_in_hf, "checkpoint.resume_mode",
                "expected initial_load_path too: the step-N folder whose weights are loaded");
      refuse_if(!c.initial_load_model_only, "checkpoint.initial_load_model_only",
                "resume_mode = \"transfer\" loads the model alone: set true, or resume_mode = \"continue\"");
      refuse_if(!c.components.empty() && c.components != std::vector<std::string>{"model"},
                "checkpoint.components",
                "resume_mode = \"transfer\" loads the model alone: set resume_mode = \"continue\"");
      refuse_if(contains(c.exclude_from_loading, checkpoint::kModelComponent),
                "checkpoint.exclude_from_loading",
                "resume_mode = \"transfer\" loads the model and nothing else");
    }
    refuse_if(
        c.resume_mode == ResumeMode::kContinue && c.initial_load_path && c.initial_load_model_only,
        "checkpoint.initial_load_model_only",
        "resume_mode = \"continue\" loads more than the model: set false, or resume_mode = \"transfer\"");
    refuse_if(c.resume_mode != ResumeMode::kRecover && c.on_config_change == OnConfigChange::kKeep,
              "checkpoint.on_config_change",
              fmt::format("only resume_mode = \"recover\" keeps saved settings; \"{}\" takes those of the "
                          "configuration, and compares the model's",
                          text_of(c.resume_mode)));
  }

  // exclude_from_loading (v0.2.2's key) and components (Hyperion's) must not contradict each other.
  void components() {
    const auto& c = config_.checkpoint;
    refuse_if(contains(c.exclude_from_loading, checkpoint::kOptimizerComponent) &&
                  !contains(c.exclude_from_loading, checkpoint::kSchedulerComponent),
              "checkpoint.exclude_from_loading",
              "expected lr_scheduler in the list too: the learning-rate schedule would resume while the "
              "optimizer's moments start from 0");
    for (const std::string& component : c.components)
      refuse_if(contains(c.exclude_from_loading, component), "checkpoint.components",
                fmt::format("{} is in exclude_from_loading too: name it in one of them", component));
  }
};

// Adds a problem if `key` belongs to data that are not given, because nothing is downloaded.
void require_dataset_path(const ResolvedConfig& resolved, std::string_view key, Problems& problems) {
  const JobConfig& config = resolved.config;
  const auto refuse = [&](const char* dataset, const char* own) {
    problems.add(
        resolved, dataset,
        fmt::format("expected {} (a file, folder or glob of JSON lines, or a folder of token shards) "
                    "too, because nothing is downloaded; \"c4_test\" alone is the {}",
                    key, own));
  };
  if (key == "training.dataset_path" && !config.training.dataset_path && config.training.sources.empty() &&
      !uses_default_corpus(config))
    refuse("training.dataset", "default corpus");
  if (key == "validation.dataset_path" && config.validation.enable && !config.validation.dataset_path &&
      config.validation.sources.empty() && !validates_on_default_corpus(config))
    refuse("validation.dataset", "novel held out of the default corpus");
}

}  // namespace

void check_config(const ResolvedConfig& resolved, const RunContext& run, Problems& problems) {
  Checks checks(resolved, run, problems);
  checks.refuse_features();
  checks.mesh_and_batch();
  check_ramp(resolved, run, problems);
  checks.context();
  checks.lengths();
  checks.optimizer();
  checks.profiling();
  checks.tracking();
  checks.validation();
  checks.float8();
  checks.model();
  checks.checkpoints();
  check_sources(resolved, problems);
  check_groups(resolved, run.model, problems);
}

void check_input(const ResolvedConfig& resolved, const char* key, const fs::path& base, Problems& problems) {
  require_dataset_path(resolved, key, problems);
  check_source_paths(resolved, key, base, problems);
  const Value value = read(*find_option(key), resolved.config);
  const auto* path = std::get_if<std::string>(&value);
  if (path == nullptr ||
      (std::string_view(key).starts_with("validation.") && !resolved.config.validation.enable))
    return;
  const fs::path file = resolve_input(*path, base);
  std::error_code error;
  if (!fs::exists(file, error) && error)
    problems.add(resolved, key, fmt::format("cannot be read: {}", errno_text(error.value())));
  else if (!matches_an_input(file))
    problems.add(resolved, key,
                 fmt::format("no such file or folder, neither in {} nor in {}", fs::current_path().string(),
                             base.string()));
}

void require_valid_config(const ResolvedConfig& resolved, const RunContext& run,
                          const std::optional<fs::path>& base) {
  Problems problems;
  check_config(resolved, run, problems);
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
  const auto& p = resolved.config.parallelism;
  if (p.expert_parallel_degree > 1 && !kExperts.on(resolved.config))
    warnings.push_back(
        fmt::format("parallelism.expert_parallel_degree = {} ({}) has no effect: the model has no experts",
                    p.expert_parallel_degree, resolved.origin("parallelism.expert_parallel_degree")));
  // Keys of a pipeline that another one overrules.
  const auto overruled = [&](const std::string& key, bool holds, std::string_view by) {
    if (p.pipeline_parallel_degree > 1 && holds && resolved.origins.contains(key))
      warnings.push_back(fmt::format("{} ({}) has no effect: {}", key, resolved.origin(key), by));
  };
  const bool listed = p.module_fqns_per_model_part.has_value();
  for (const char* key : {"first_stage_less_layers", "last_stage_less_layers", "layers_per_stage"})
    overruled(fmt::format("parallelism.pipeline_parallel_{}", key), listed,
              "parallelism.module_fqns_per_model_part lists the stages");
  overruled("parallelism.pipeline_parallel_layers_per_stage",
            !listed && !p.pipeline_parallel_schedule_csv.empty(),
            "the file of parallelism.pipeline_parallel_schedule_csv has the number of stages");
  overruled("parallelism.pipeline_parallel_expert_parallel_overlap",
            !p.pipeline_parallel_expert_parallel_overlap,
            "what DualPipeV pairs runs one after the other in any case");
  overruled(
      "parallelism.fsdp_reduce_gradients",
      p.fsdp_reduce_gradients != ReduceGradients::kOncePerStep && reduces_gradients_once(resolved.config),
      "a pipeline reduces once per step unless parallelism.fsdp_reshard_after_forward = \"always\"");
  return warnings;
}

bool uses_default_corpus(const JobConfig& config) {
  return config.training.dataset == Dataset::kC4Test && !config.training.dataset_path &&
         config.training.sources.empty();
}

bool validates_on_default_corpus(const JobConfig& config) {
  const auto& v = config.validation;
  return !v.dataset_path && v.sources.empty() &&
         (v.dataset == Dataset::kC4Test ||
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

bool divides_experts(const JobConfig& config) {
  return config.parallelism.expert_parallel_degree > 1 && kExperts.on(config);
}

bool passes_keys_in_ring(const JobConfig& config) {
  const auto& p = config.parallelism;
  return p.context_parallel_degree > 1 && p.context_parallel_rotate_method == "alltoall" &&
         !config.training.document_mask;
}

bool is_dry_run(const JobConfig& config) {
  return config.comm.mode == CommMode::kFakeBackend;
}

int64_t microbatch_rows(const JobConfig& config, int64_t rows) {
  const auto& parallelism = config.parallelism;
  return parallelism.pipeline_parallel_degree > 1 ? parallelism.pipeline_parallel_microbatch_size : rows;
}

bool reduces_gradients_once(const JobConfig& config) {
  const auto& parallelism = config.parallelism;
  return parallelism.fsdp_reduce_gradients == ReduceGradients::kOncePerStep ||
         (parallelism.pipeline_parallel_degree > 1 &&
          parallelism.fsdp_reshard_after_forward != ReshardAfterForward::kAlways);
}

int64_t microbatches_of(const JobConfig::Training& training, int64_t data_parallel_degree) {
  int64_t sequences = training.global_batch_size;
  for (const auto& [begin, of_stage] : training.global_batch_ramp) sequences = std::max(sequences, of_stage);
  if (sequences < 0) return 1;
  return sequences / (training.local_batch_size * data_parallel_degree);
}

int64_t global_batch_of(const JobConfig::Training& training, int64_t data_parallel_degree) {
  return microbatches_of(training, data_parallel_degree) * training.local_batch_size * data_parallel_degree;
}

}  // namespace hyperion::config
