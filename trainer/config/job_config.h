// The configuration of a training job as plain data: one struct per TOML table, members named exactly as the
// TOML keys, initialised with the defaults of torchtitan v0.2.2. What each key means, its range and whether
// it has an effect is stated once, in schema.cpp; `hyperion train --help` and docs/configuration.md are
// printed from there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/flavors/registry.h"

namespace hyperion {

// A TOML table with keys of the user's own, in the order of the file.
using TextTable = std::vector<std::pair<std::string, std::string>>;

struct JobConfig {
  struct Job {
    std::optional<std::string> config_file;
    std::string dump_folder = "./outputs";
    std::string description = "default job";
    bool print_config = false;
    std::optional<std::string> save_config_file;
    std::string custom_config_module;
  } job;

  struct Profiling {
    bool enable_profiling = false;
    std::string save_traces_folder = "profile_traces";
    int64_t profile_freq = 10;
    int64_t profiler_active = 1;
    int64_t profiler_warmup = 3;
    bool enable_memory_snapshot = false;
    std::string save_memory_snapshot_folder = "memory_snapshot";
  } profiling;

  struct Metrics {
    int64_t log_freq = 10;
    bool enable_tensorboard = false;
    bool disable_color_printing = false;
    std::string save_tb_folder = "tb";
    bool save_for_all_ranks = false;
    bool enable_wandb = false;
    bool enable_jsonl = true;  // ours
  } metrics;

  struct Model {
    std::string name = "llama3";
    std::string flavor = "debugmodel";
    std::string hf_assets_path = "./tests/assets/tokenizer";
    std::optional<std::string> tokenizer_path;
    std::vector<std::string> converters;
    bool print_after_conversion = false;

    // Ours: each member that is set replaces that dimension of the flavour.
    ModelOverrides args;
  } model;

  struct Optimizer {
    std::string name = "AdamW";
    double lr = 8e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    std::string implementation = "fused";
    bool early_step_in_backward = false;
  } optimizer;

  struct LrScheduler {
    int64_t warmup_steps = 200;
    std::optional<int64_t> total_steps;
    std::optional<double> decay_ratio;
    std::string decay_type = "linear";
    double min_lr_factor = 0.0;
  } lr_scheduler;

  struct Dataloader {
    int64_t num_workers = 0;
    bool persistent_workers = false;
    bool pin_memory = false;
    std::optional<int64_t> prefetch_factor;
  };

  struct Training {
    std::string dataset = "c4_test";
    std::optional<std::string> dataset_path;
    int64_t local_batch_size = 8;
    int64_t global_batch_size = -1;
    int64_t seq_len = 2048;
    double max_norm = 1.0;
    int64_t steps = 10000;
    bool enable_cpu_offload = false;
    std::string dtype = "float32";
    std::string mixed_precision_param = "bfloat16";
    std::string mixed_precision_reduce = "float32";
    int64_t gc_freq = 50;
    bool gc_debug = false;
    std::string text_field = "text";  // ours
    bool shuffle = true;              // ours
    bool document_mask = false;       // ours
    int64_t loss_chunk_bytes = 0;     // ours; 0: automatic
    Dataloader dataloader;
  } training;

  struct Parallelism {
    int64_t data_parallel_replicate_degree = 1;
    int64_t data_parallel_shard_degree = -1;
    std::string fsdp_reshard_after_forward = "default";
    int64_t tensor_parallel_degree = 1;
    bool disable_loss_parallel = false;
    bool enable_async_tensor_parallel = false;
    int64_t pipeline_parallel_degree = 1;
    std::optional<std::vector<std::vector<std::string>>> module_fqns_per_model_part;
    int64_t pipeline_parallel_first_stage_less_layers = 1;
    int64_t pipeline_parallel_last_stage_less_layers = 1;
    std::optional<int64_t> pipeline_parallel_layers_per_stage;
    std::string pipeline_parallel_schedule = "1F1B";
    std::string pipeline_parallel_schedule_csv;
    int64_t pipeline_parallel_microbatch_size = 1;
    bool pipeline_parallel_expert_parallel_overlap = true;
    int64_t context_parallel_degree = 1;
    std::optional<std::string> context_parallel_load_balancer = "headtail";
    std::string context_parallel_rotate_method = "allgather";
    int64_t expert_parallel_degree = 1;
    int64_t expert_tensor_parallel_degree = 1;
    std::string expert_parallel_comm_backend = "standard";
  } parallelism;

  struct Checkpoint {
    bool enable = false;
    bool enable_ft_dataloader_checkpoints = true;
    std::string folder = "checkpoint";
    int64_t interval = 500;
    std::optional<std::string> initial_load_path;
    bool initial_load_model_only = true;
    bool initial_load_in_hf = false;
    bool initial_load_in_hf_quantized = false;
    bool last_save_model_only = true;
    bool last_save_in_hf = false;
    std::string export_dtype = "float32";
    std::string async_mode = "disabled";
    int64_t keep_latest_k = 10;
    int64_t load_step = -1;
    std::vector<std::string> exclude_from_loading;
    bool enable_first_step_checkpoint = false;
    bool create_seed_checkpoint = false;
    bool load_only = false;
    // The rest is ours.
    bool validate_before_training = true;
    std::string validate_on_resume = "full";
    std::string writers = "all";
    std::string on_save_failure = "stop";
    std::string resume_mode = "recover";
    std::vector<std::string> components;
    std::string on_config_change = "error";
    std::string on_corrupt = "previous";
    bool full_verify_on_load = false;
    bool verify_finite = true;
    bool allow_dtype_cast = false;
    bool allow_other_tokenizer = false;
    TextTable rename;
  } checkpoint;

  struct Ema {  // ours
    bool enable = false;
    double decay = 0.999;
    int64_t every = 1;
    std::string device = "same";
    bool validate_with_ema = false;
    std::string on_missing = "error";
  } ema;

  struct ActivationCheckpoint {
    std::string mode = "selective";
    std::string selective_ac_option = "2";
    std::vector<std::string> per_op_sac_force_recompute_mm_shapes_by_fqns = {"moe.router.gate"};
    bool early_stop = false;
    double memory_budget = 0.5;
    bool visualize_memory_budget_pareto = false;
    bool preserve_rng_state = true;
    std::string determinism_check = "default";
    bool debug = false;
  } activation_checkpoint;

  struct Compile {
    bool enable = false;
    std::vector<std::string> components = {"model", "loss"};
    std::string backend = "inductor";
  } compile;

  struct Quantize {
    struct Linear {
      struct Float8 {
        bool enable_fsdp_float8_all_gather = false;
        bool precompute_float8_dynamic_scale_for_fsdp = false;
        std::optional<std::string> recipe_name;
        std::vector<std::string> filter_fqns;
        bool emulate = false;
      } float8;
      struct Mx {
        std::string mxfp8_dim1_cast_kernel_choice = "triton";
        std::string recipe_name = "mxfp8_cublas";
        std::vector<std::string> filter_fqns = {"output"};
      } mx;
    } linear;
    struct GroupedMm {
      struct Float8 {
        std::vector<std::string> fqns;
      } float8;
      struct Mx {
        std::string recipe_name = "mxfp8";
        std::vector<std::string> fqns;
      } mx;
    } grouped_mm;
  } quantize;

  struct Comm {
    int64_t init_timeout_seconds = 300;
    int64_t train_timeout_seconds = 100;
    int64_t trace_buf_size = 20000;
    std::string save_traces_folder = "comm_traces";
    std::string save_traces_file_prefix = "rank_";
    std::string mode = "default";
  } comm;

  struct MemoryEstimation {
    bool enable = false;
    bool disable_fake_mode = false;
  } memory_estimation;

  struct FaultTolerance {
    bool enable = false;
    std::string process_group = "gloo";
    int64_t process_group_timeout_ms = 10000;
    int64_t replica_id = 0;
    int64_t group_size = 0;
    int64_t min_replica_size = 1;
    std::optional<std::string> semi_sync_method;
  } fault_tolerance;

  struct Experimental {
    std::string custom_import;
    std::string custom_args_module;
  } experimental;

  struct Validation {
    bool enable = false;
    std::string dataset = "c4_validation";
    std::optional<std::string> dataset_path;
    int64_t local_batch_size = 8;
    int64_t seq_len = 2048;
    int64_t freq = 10;
    int64_t steps = -1;
    std::optional<int64_t> sequences;       // ours
    std::optional<std::string> text_field;  // ours
    Dataloader dataloader;
  } validation;

  struct Debug {
    std::optional<int64_t> seed;
    bool deterministic = false;
    bool deterministic_warn_only = false;
    bool moe_force_load_balance = false;
  } debug;
};

}  // namespace hyperion
