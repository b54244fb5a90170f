#include "trainer/config/suggest.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/nearest.h"
#include "trainer/config/schema.h"

namespace hyperion::config {
namespace {

// Names that other programs use for a key, if they differ much from its own.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"optimizer.lr", "learning_rate max_lr peak_lr base_lr"},
    {"optimizer.name", "optim optimizer_name optimizer_type"},
    {"optimizer.eps", "adam_eps adam_epsilon epsilon"},
    {"optimizer.beta1", "adam_beta1 betas"},
    {"optimizer.beta2", "adam_beta2"},
    {"lr_scheduler.warmup_steps", "warmup warmup_iters num_warmup_steps lr_warmup_steps"},
    {"lr_scheduler.total_steps", "decay_steps lr_decay_steps lr_decay_iters"},
    {"lr_scheduler.decay_type", "lr_scheduler_type lr_decay_style schedule"},
    {"lr_scheduler.min_lr_factor", "min_lr min_lr_ratio lr_min"},
    {"training.steps", "max_steps num_steps train_steps iters max_iters train_iters iterations"},
    {"training.local_batch_size",
     "batch_size micro_batch_size microbatch_size train_batch_size device_batch_size per_device_batch_size "
     "per_device_train_batch_size"},
    {"validation.local_batch_size", "batch_size eval_batch_size per_device_eval_batch_size"},
    {"training.global_batch_size",
     "total_batch_size gradient_accumulation_steps grad_accum grad_accum_steps accumulation_steps"},
    {"training.seq_len",
     "sequence_length seq_length max_seq_length max_length context_length context_len block_size"},
    {"validation.seq_len", "sequence_length seq_length max_seq_length context_length block_size"},
    {"training.max_norm",
     "grad_clip clip_grad max_grad_norm gradient_clipping gradient_clip_val clip_grad_norm"},
    {"training.dataset_path", "data data_path data_dir train_data train_file dataset_dir"},
    {"validation.dataset_path", "data data_path val_data validation_file eval_data"},
    {"validation.freq", "eval_interval eval_steps eval_freq eval_every val_interval val_check_interval"},
    {"validation.sequences", "eval_samples num_sequences max_eval_samples"},
    {"validation.steps", "eval_iters val_iters eval_batches limit_val_batches"},
    {"training.mixed_precision_param", "precision mixed_precision bf16 amp"},
    {"metrics.log_freq", "log_interval logging_steps log_every log_every_n_steps"},
    {"metrics.enable_tensorboard", "tensorboard use_tensorboard"},
    {"metrics.enable_wandb", "wandb use_wandb"},
    {"metrics.wandb_name", "wandb_run_name run_name"},
    {"metrics.enable_mlflow", "mlflow use_mlflow"},
    {"metrics.mlflow_experiment", "mlflow_experiment_name"},
    {"checkpoint.interval",
     "save_interval save_steps save_every checkpoint_interval checkpoint_freq every_n_train_steps"},
    {"checkpoint.keep_latest_k", "save_total_limit keep_last max_to_keep save_top_k"},
    {"checkpoint.initial_load_path",
     "pretrained init_from load resume_from resume_from_checkpoint model_name_or_path"},
    {"job.dump_folder", "output_dir out_dir output output_folder save_dir log_dir"},
    {"model.hf_assets_path", "tokenizer tokenizer_name tokenizer_dir tokenizer_file"},
    {"model.flavor", "size model_size"},
    {"model.args.dim", "hidden_size d_model n_embd embed_dim model_dim width"},
    {"model.args.n_layers", "num_layers n_layer num_hidden_layers layers depth"},
    {"model.args.n_heads", "num_heads n_head num_attention_heads heads"},
    {"model.args.n_kv_heads", "num_kv_heads num_key_value_heads num_query_groups"},
    {"model.args.hidden_dim", "intermediate_size ffn_dim ffn_hidden_size mlp_dim d_ff"},
    {"model.args.rope_theta", "rope_base rotary_base"},
    {"model.args.norm_eps", "rms_norm_eps layer_norm_eps layernorm_epsilon"},
    {"model.args.tied", "tie_word_embeddings tie_embeddings weight_tying"},
    {"model.args.max_seq_len", "max_position_embeddings"},
    {"parallelism.tensor_parallel_degree",
     "tp tp_size tp_degree tensor_parallel_size sequence_parallel_degree"},
    {"parallelism.pipeline_parallel_degree", "pp pp_size pp_degree pipeline_parallel_size"},
    {"parallelism.context_parallel_degree", "cp cp_size cp_degree"},
    {"parallelism.expert_parallel_degree", "ep ep_size ep_degree"},
    {"parallelism.data_parallel_shard_degree", "fsdp dp dp_shard fsdp_size zero_stage data_parallel_degree"},
    {"parallelism.data_parallel_replicate_degree", "ddp dp_replicate hsdp"},
    {"activation_checkpoint.mode", "gradient_checkpointing activation_checkpointing recompute"},
    {"profiling.enable_profiling", "profile profiler"},
    // torchtitan 0.1
    {"job.print_config", "print_args"},
    {"compile.enable", "compile"},
    {"parallelism.module_fqns_per_model_part", "pipeline_parallel_split_points"},
    {"checkpoint.enable", "enable_checkpoint"},
    {"checkpoint.last_save_model_only", "model_weights_only"},
};

// Keys of torchtitan 0.1, whatever table they were in, and tables whose values are written otherwise now.
constexpr std::pair<std::string_view, const char*> kFormerKeys[] = {
    {"use_for_integration_test", "only torchtitan's own tests read it; remove it"},
    {"rank_0_only", "metrics.save_for_all_ranks is its opposite"},
    {"norm_type", "every norm is an RMSNorm; remove it"},
    {"use_flex_attn",
     "training.document_mask = true keeps attention inside documents; without it remove the key"},
    {"attn_mask_type", "\"block_causal\" is training.document_mask = true now, \"causal\" is false"},
    {"fused", "set optimizer.implementation = \"fused\" in the place of true"},
    {"foreach", "set optimizer.implementation = \"foreach\" in the place of true"},
    {"enable_loss_parallel", "parallelism.disable_loss_parallel is its opposite"},
    {"enable_compiled_autograd", "there is nothing to compile; remove it"},
    {"pipeline_parallel_microbatches",
     "parallelism.pipeline_parallel_microbatch_size is the number of sequences in one: local_batch_size "
     "divided by this number"},
    {"interval_type", "checkpoint.interval counts steps; remove it"},
    {"enable_float8_linear", "list \"quantize.linear.float8\" in model.converters in the place of true"},
    {"enable_fp8_linear", "list \"quantize.linear.float8\" in model.converters in the place of true"},
};
constexpr std::pair<std::string_view, const char*> kFormerSections[] = {
    {"float8",
     "its keys are in [quantize.linear.float8], and enable_float8_linear = true is model.converters = "
     "[\"quantize.linear.float8\"]"},
    {"mx", "its keys are in [quantize.linear.mx]"},
};

// Words that a key does not take here, in lower case, letters and digits alone.
struct Unavailable {
  std::string_view key, words;
  const char* text;
};
constexpr Unavailable kUnavailable[] = {
    {"model.name", "mixtral qwen2moe", "this family is not available"},
    {"model.name", "qwen3moe", "its models are flavours of qwen3: debugmodel_moe, 30B-A3B and 235B-A22B"},
    {"model.flavor", "debugmodelirope 17bx16eirope 17bx128eirope",
     "attention without positions in every fourth block is not available"},
    {"model.name", "flux vlm", "this family is not available: models of images are missing"},
    {"model.name", "llama3ft",
     "this family is not available: torchft is missing, and llama3 is the same model without it"},
    {"model.name", "llama2", "this family is not available"},
    {"model.name", "qwen25", "Qwen2.5 is qwen2 here, with flavor = \"from_hf\""},
    {"model.flavor", "8bflex 8bvarlen debugmodelflexattn debugmodelvarlenattn",
     "attention within documents is training.document_mask = true here, with the flavour of the same size"},
    {"optimizer.name", "adafactor adagrad adamax lamb lion nadam radam sgd",
     "this optimizer is not available"},
    {"lr_scheduler.decay_type", "constant constantwithwarmup none",
     "lr_scheduler.decay_ratio = 0.0 keeps the learning rate after the warm-up"},
    {"lr_scheduler.decay_type", "exponential inversesqrt polynomial rsqrt", "this shape is not available"},
    {"parallelism.context_parallel_rotate_method", "ring p2p pass passkv ringattention",
     "\"alltoall\" passes keys and values round in a ring"},
    {"parallelism.context_parallel_rotate_method", "gather allgatherkv ag",
     "\"allgather\" gathers all keys and values at once"},
    {"parallelism.context_parallel_rotate_method", "ulysses a2a heads",
     "an exchange of heads is not available: \"allgather\" gathers keys and values, \"alltoall\" passes them "
     "round in a ring"},
    {"parallelism.pipeline_parallel_schedule", "zerobubble zb zb1p zbh1 zbh2",
     "\"InterleavedZeroBubble\", \"ZBVZeroBubble\" and \"DualPipeV\" divide backwards into two"},
    {"parallelism.pipeline_parallel_schedule", "vpp virtual virtualpipeline",
     "\"Interleaved1F1B\" gives each rank several stages"},
    {"quantize.linear.mx.recipe_name", "mxfp4cutlass mxfp4emulated", "MXFP4 is not available"},
};

// Returns whether `word` is one of `words`, between blanks.
bool is_among(std::string_view word, std::string_view words) {
  return fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

}  // namespace

std::string nearest_key(std::string_view name) {
  if (name.size() > kLongestSuggested) return "";
  const size_t key_start = name.rfind('.') + 1;
  const std::string_view section = name.substr(0, key_start), key = name.substr(key_start);
  // Among several keys with the right last part, the nearest full name wins: it is in the same section.
  std::vector<std::string> meant;
  for (const Option& option : all_options())
    if (option.key() == key) meant.push_back(option.name);
  if (meant.empty())
    for (const auto& [synonym_of, words] : kSynonyms)
      if (is_among(key, words)) meant.emplace_back(synonym_of);
  if (!meant.empty())
    return std::ranges::min(meant, {}, [&](const std::string& full) { return edit_distance(name, full); });
  std::string best;
  size_t best_distance = suggestion_tolerance(key) + 1;
  for (const Option& option : all_options()) {
    // A key of another section must be nearly equal, and loses against a key of the same section.
    const bool same_section = section == option.name.substr(0, option.name.rfind('.') + 1);
    const size_t distance =
        same_section ? edit_distance(key, option.key())
                     : std::min(edit_distance(name, option.name), 1 + 2 * edit_distance(key, option.key()));
    if (distance < best_distance) {
      best = option.name;
      best_distance = distance;
    }
  }
  return best;
}

std::string nearest_section(std::string_view name) {
  std::vector<std::string> names;
  for (const Section& section : schema()) names.push_back(section.name);
  return nearest_name(name, names);
}

std::string former_key(std::string_view name) {
  const std::string_view key = name.substr(name.rfind('.') + 1);
  for (const auto& [former, text] : kFormerKeys)
    if (former == key) return text;
  return "";
}

std::string former_section(std::string_view name) {
  for (const auto& [former, text] : kFormerSections)
    if (former == name) return text;
  return "";
}

std::string nearest_choice(const Option& option, std::string_view text) {
  if (!option.any_case) return nearest_name(text, option.choices);
  const auto lower = [](std::string_view given) {
    std::string result(given.substr(0, kLongestSuggested + 1));
    for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return result;
  };
  std::vector<std::string> choices;
  for (const std::string& choice : option.choices) choices.push_back(lower(choice));
  const auto found = std::ranges::find(choices, nearest_name(lower(text), choices));
  return found == choices.end() ? "" : option.choices[static_cast<size_t>(found - choices.begin())];
}

std::string unavailable_word(std::string_view key, std::string_view word) {
  std::string plain;
  for (const unsigned char c : word.substr(0, kLongestSuggested))
    if (std::isalnum(c) != 0) plain += static_cast<char>(std::tolower(c));
  for (const Unavailable& entry : kUnavailable)
    if (entry.key == key && is_among(plain, entry.words)) return entry.text;
  return "";
}

}  // namespace hyperion::config
