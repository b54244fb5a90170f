#include "trainer/config/schema.h"

#include <algorithm>
#include <unordered_map>

#include "trainer/config/features.h"

namespace hyperion {
namespace {

// The name and the member in one word, so that they cannot disagree (what a function cannot do).
#define KEY(path) #path, [](JobConfig & config) -> Field { return &config.path; }

constexpr double kDegreeLimit = 1'000'000;  // ranks; keeps products of degrees and batches inside 64 bits
constexpr double kSizeLimit = 1'000'000'000;

std::vector<Option> job() {
  return {
      {KEY(job.config_file), "The TOML file, when it is not given as a plain argument."},
      Option{KEY(job.dump_folder),
             "Folder under which everything the job writes is placed; ${NAME} and %j are expanded."}
          .a_path(),
      {KEY(job.description), "Free text that is logged at the start."},
      {KEY(job.print_config), "Log the resolved configuration as JSON at the start."},
      Option{KEY(job.save_config_file),
             "Rank 0 writes the resolved configuration as JSON to this file under dump_folder."}
          .a_path(),
      Option{KEY(job.custom_config_module), "Python module that extends the configuration."}.when(
          kCustomConfigModule),
  };
}

std::vector<Option> profiling() {
  return {
      Option{KEY(profiling.enable_profiling), "Write chrome traces, one per rank and cycle."},
      Option{KEY(profiling.save_traces_folder), "Folder of the traces, under dump_folder."}.when(kProfiling),
      Option{KEY(profiling.profile_freq), "Steps in one cycle: wait, warm up, record."}.at_least(1).when(
          kProfiling),
      Option{KEY(profiling.profiler_active), "Steps recorded in each cycle."}.at_least(1).when(kProfiling),
      Option{KEY(profiling.profiler_warmup), "Steps traced and thrown away before them."}.at_least(0).when(
          kProfiling),
      Option{KEY(profiling.enable_memory_snapshot),
             "Write the GPU allocator's history every profile_freq steps."},
      Option{KEY(profiling.save_memory_snapshot_folder), "Folder of the snapshots, under dump_folder."}.when(
          kMemorySnapshot),
  };
}

std::vector<Option> metrics() {
  return {
      Option{KEY(metrics.log_freq), "Steps between two lines of metrics (step 1 is always logged)."}.at_least(
          1),
      {KEY(metrics.enable_tensorboard), "Write TensorBoard event files."},
      {KEY(metrics.disable_color_printing),
       "No colours in the log, and no lines that are rewritten in place."},
      Option{KEY(metrics.save_tb_folder), "Folder of the event files, under dump_folder."}.when(kTensorBoard),
      {KEY(metrics.save_for_all_ranks), "Every rank writes its metrics, not only rank 0."},
      Option{KEY(metrics.enable_wandb), "Send metrics to Weights & Biases."}.when(kWandb),
      Option{KEY(metrics.enable_jsonl),
             "Write metrics.jsonl under dump_folder, one object per logged step or event."}
          .own(),
  };
}

std::vector<Option> model() {
  return {
      Option{KEY(model.name), "Model family."}.one_of({"llama3", "qwen3"}),
      {KEY(model.flavor),
       "Size within the family (debugmodel, 8B ...), or from_hf: taken from a config.json."},
      Option{KEY(model.hf_assets_path),
             "Folder with the tokenizer's files; also looked for beside the program's folder."}
          .a_path(),
      Option{KEY(model.tokenizer_path), "Former name of hf_assets_path, still read, with a warning."}
          .a_path(),
      Option{KEY(model.converters), "Changes made to the model before it is sharded, in order."}.one_of(
          {"quantize.linear.float8", "quantize.linear.mx", "quantize.grouped_mm.float8",
           "quantize.grouped_mm.mx", "float8"}),
      Option{KEY(model.print_after_conversion), "Log the model after its converters ran."}.when(kConverters),
  };
}

std::vector<Option> model_args() {
  const auto size = [](Option option) { return option.at_least(1).at_most(kSizeLimit).own(); };
  return {
      size({KEY(model.args.dim), "Width of the residual stream."}),
      size({KEY(model.args.n_layers), "Number of blocks."}),
      size({KEY(model.args.n_heads), "Query heads."}),
      size({KEY(model.args.n_kv_heads), "Key and value heads; divides n_heads."}),
      size({KEY(model.args.head_dim), "Width of one head; even."}),
      size({KEY(model.args.vocab_size), "Rows of the embedding; at least the tokenizer's vocabulary."}),
      size({KEY(model.args.hidden_dim), "Width of the SwiGLU; wins over the two rules below."}),
      size({KEY(model.args.multiple_of),
            "Llama's rule: the SwiGLU's width is rounded up to a multiple of this."}),
      Option{KEY(model.args.ffn_dim_multiplier), "Llama's rule: factor on 8/3 dim before rounding."}
          .above(0)
          .own(),
      Option{KEY(model.args.norm_eps), "Epsilon of every RMSNorm."}.above(0).own(),
      Option{KEY(model.args.rope_theta), "Base of the rotary frequencies."}.above(0).own(),
      Option{KEY(model.args.rope_scaling), "Llama 3.1's rescaling of the rotary frequencies."}.own(),
      Option{KEY(model.args.rope_factor), "Rescaling: how far long wavelengths are stretched."}
          .at_least(1)
          .own(),
      Option{KEY(model.args.rope_low_freq_factor),
             "Rescaling: wavelengths above original_length / this are stretched."}
          .above(0)
          .own(),
      Option{KEY(model.args.rope_high_freq_factor),
             "Rescaling: wavelengths below original_length / this are kept."}
          .above(0)
          .own(),
      size({KEY(model.args.rope_original_length), "Rescaling: positions the model was first trained for."}),
      Option{KEY(model.args.qk_norm), "RMSNorm on each query and key head."}.own(),
      Option{KEY(model.args.tied), "The output head shares the embedding's weight (enable_weight_tying)."}
          .own(),
      Option{KEY(model.args.depth_init),
             "Initial std of wo, w2, w3 shrinks with the block's index, not with n_layers."}
          .own(),
      size({KEY(model.args.max_seq_len),
            "Positions the model is made for, the flavour's unless set; no sequence may be longer."}),
  };
}

std::vector<Option> optimizer() {
  return {
      Option{KEY(optimizer.name), "Optimizer."}.one_of({"AdamW", "Adam"}),
      Option{KEY(optimizer.lr), "Peak learning rate."}.at_least(0),
      Option{KEY(optimizer.beta1), "Decay of the first moment."}.at_least(0).below(1),
      Option{KEY(optimizer.beta2), "Decay of the second moment."}.at_least(0).below(1),
      Option{
          KEY(optimizer.eps),
          "Added to the root of the second moment, so that a weight without a gradient is not divided by 0."}
          .above(0),
      Option{KEY(optimizer.weight_decay), "Weight decay, on every parameter."}.at_least(0),
      Option{KEY(optimizer.implementation), "How the update is computed; the results agree."}.one_of(
          {"for-loop", "foreach", "fused"}),
      Option{KEY(optimizer.early_step_in_backward), "Update each parameter inside the backward."}.when(
          kEarlyStep),
  };
}

std::vector<Option> lr_scheduler() {
  return {
      Option{KEY(lr_scheduler.warmup_steps), "Steps of linear warm-up."}.at_least(0),
      Option{KEY(lr_scheduler.total_steps), "Length of the whole curve; training.steps unless set."}.at_least(
          1),
      Option{KEY(lr_scheduler.decay_ratio), "Share of the curve that decays; unset: all after the warm-up."}
          .at_least(0)
          .at_most(1),
      Option{KEY(lr_scheduler.decay_type), "Shape of the decay."}.one_of({"linear", "sqrt", "cosine"}),
      Option{KEY(lr_scheduler.min_lr_factor), "The decay ends at this fraction of lr."}.at_least(0).at_most(
          1),
  };
}

std::vector<Option> training() {
  return {
      Option{KEY(training.dataset),
             "c4_test: the default corpus, unless dataset_path is set; c4, jsonl: dataset_path."}
          .one_of({"c4_test", "c4", "jsonl"}),
      Option{KEY(training.dataset_path),
             "JSON lines (plain, .gz, .zst): a file, a folder or a glob; or a folder of token shards."}
          .a_path(),
      Option{KEY(training.local_batch_size), "Sequences of one microbatch on each data-parallel rank."}
          .at_least(1)
          .at_most(kSizeLimit),
      Option{KEY(training.global_batch_size), "Sequences of one step; -1: one microbatch on each rank."}
          .at_least(1)
          .at_most(kSizeLimit)
          .or_value(-1),
      Option{KEY(training.seq_len), "Tokens of one sequence."}.at_least(1).at_most(kSizeLimit),
      Option{KEY(training.max_norm), "Gradients are scaled down to this global L2 norm."}.above(0),
      Option{KEY(training.steps), "Steps to train."}.at_least(1),
      {KEY(training.enable_cpu_offload), "Keep parameters, gradients and optimizer state in host memory."},
      Option{KEY(training.dtype), "Type of parameters, gradients and optimizer state."}.one_of(
          {"float32", "bfloat16"}),
      Option{KEY(training.mixed_precision_param), "Type of the forward and backward."}.one_of(
          {"bfloat16", "float32"}),
      Option{KEY(training.mixed_precision_reduce), "Type in which gradients are reduced."}.one_of(
          {"float32"}),
      Option{KEY(training.gc_freq), "Steps between Python's garbage collections."}.at_least(1).only_python(),
      Option{KEY(training.gc_debug), "Look for reference cycles at each step."}.only_python(),
      Option{KEY(training.text_field), "Field of each JSON line that holds the document's text."}.own(),
      Option{KEY(training.shuffle), "Shuffle the documents by seed and epoch."}.own(),
      Option{KEY(training.document_mask), "Attention and positions stay inside each document."}.own(),
      Option{KEY(training.loss_chunk_bytes),
             "Bytes of logits held at once; 0: 64 MiB on a CPU, 1 GiB on a GPU."}
          .at_least(0)
          .own(),
  };
}

std::vector<Option> training_dataloader() {
  return {
      Option{KEY(training.dataloader.num_workers), "Worker processes."}.at_least(0).only_python(),
      Option{KEY(training.dataloader.persistent_workers), "Keep the workers between epochs."}.only_python(),
      Option{KEY(training.dataloader.pin_memory), "Copy batches to pinned memory."}.only_python(),
      Option{KEY(training.dataloader.prefetch_factor), "Batches fetched ahead by each worker."}
          .at_least(1)
          .only_python(),
  };
}

std::vector<Option> parallelism() {
  const auto degree = [](Option option) { return option.at_least(1).at_most(kDegreeLimit); };
  return {
      degree({KEY(parallelism.data_parallel_replicate_degree), "Copies of the sharded model (HSDP)."}),
      degree({KEY(parallelism.data_parallel_shard_degree),
              "Ranks that share one copy (FSDP); -1: all that are left."})
          .or_value(-1),
      Option{KEY(parallelism.fsdp_reshard_after_forward),
             "Free gathered weights between forward and backward; default: yes."}
          .one_of({"default", "always", "never"}),
      degree({KEY(parallelism.tensor_parallel_degree), "Ranks that split each layer's matrices."})
          .when(kTensorParallel),
      Option{KEY(parallelism.disable_loss_parallel), "Gather the logits before the loss."}.when(
          kTensorParallel),
      Option{KEY(parallelism.enable_async_tensor_parallel),
             "Overlap tensor-parallel communication with matmuls."}
          .when(kTensorParallel),
      degree({KEY(parallelism.pipeline_parallel_degree), "Pipeline stages' ranks."}).when(kPipelineParallel),
      Option{KEY(parallelism.module_fqns_per_model_part), "Module names of each stage."}.when(
          kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_first_stage_less_layers), "Blocks the embedding counts for."}
          .at_least(0)
          .when(kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_last_stage_less_layers), "Blocks the head counts for."}
          .at_least(0)
          .when(kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_layers_per_stage), "Blocks of one stage."}.at_least(1).when(
          kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_schedule), "Order of microbatches."}
          .one_of({"1F1B", "GPipe", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble",
                   "DualPipeV"})
          .when(kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_schedule_csv), "File with a schedule of one's own."}.when(
          kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_microbatch_size), "Sequences of one pipeline microbatch."}
          .at_least(1)
          .when(kPipelineParallel),
      Option{KEY(parallelism.pipeline_parallel_expert_parallel_overlap),
             "Overlap experts' communication (DualPipeV)."}
          .when(kPipelineParallel),
      degree({KEY(parallelism.context_parallel_degree), "Ranks that split each sequence."})
          .when(kContextParallel),
      Option{KEY(parallelism.context_parallel_load_balancer), "How a sequence is dealt to the ranks."}
          .one_of({"headtail", "ptrr"})
          .when(kContextParallel),
      Option{KEY(parallelism.context_parallel_rotate_method), "How keys and values travel."}
          .one_of({"allgather", "alltoall"})
          .when(kContextParallel),
      degree({KEY(parallelism.expert_parallel_degree), "Ranks that split the experts."})
          .when(kExpertParallel),
      degree({KEY(parallelism.expert_tensor_parallel_degree), "Ranks that split each expert's matrices."})
          .when(kExpertParallel),
      Option{KEY(parallelism.expert_parallel_comm_backend), "How tokens reach their experts."}
          .one_of({"standard", "deepep"})
          .when(kExpertParallel),
  };
}

std::vector<Option> checkpoint() {
  const std::vector<std::string> parts = {"model",       "optimizer", "lr_scheduler", "dataloader",
                                          "train_state", "rng",       "ema"};
  std::vector<Option> options = {
      {KEY(checkpoint.enable), "Save and load checkpoints."},
      Option{KEY(checkpoint.enable_ft_dataloader_checkpoints),
             "Each replica saves its loader's state at every step (torchft)."}
          .only_python(),
      Option{KEY(checkpoint.folder), "Folder of the checkpoints, under dump_folder."}.a_path(),
      Option{KEY(checkpoint.interval), "Steps between two saves."}.at_least(1),
      Option{KEY(checkpoint.initial_load_path),
             "Checkpoint (its step-N folder) to start from when the job has none of its own."}
          .a_path(),
      {KEY(checkpoint.initial_load_model_only), "Read only the model from initial_load_path."},
      {KEY(checkpoint.initial_load_in_hf), "initial_load_path holds Hugging Face safetensors."},
      {KEY(checkpoint.initial_load_in_hf_quantized), "Those are fp8 weights with block scales."},
      {KEY(checkpoint.last_save_model_only),
       "The last save holds the model alone; the full one before it stays, so that the run can go on."},
      {KEY(checkpoint.last_save_in_hf), "The last save is Hugging Face safetensors."},
      Option{KEY(checkpoint.export_dtype), "Type of the last save of a model alone."}.one_of(
          {"float32", "bfloat16", "float16"}),
      Option{KEY(checkpoint.async_mode), "Write while training goes on."}.one_of(
          {"disabled", "async", "async_with_pinned_mem"}),
      Option{KEY(checkpoint.keep_latest_k),
             "Complete checkpoints kept; 0: all. 1 is refused: the newest may be in flight."}
          .at_least(2)
          .or_value(0),
      Option{KEY(checkpoint.load_step), "Step to resume from; -1: the newest."}.at_least(-1),
      Option{KEY(checkpoint.exclude_from_loading),
             "Parts that are not read, at every start; take it out again after one that saved."}
          .one_of(parts),
      {KEY(checkpoint.enable_first_step_checkpoint), "Also save after step 1, to prove that storage works."},
      {KEY(checkpoint.create_seed_checkpoint), "Write step-0 from one process and end."},
      {KEY(checkpoint.load_only), "Load, never save."},
      Option{KEY(checkpoint.validate_before_training),
             "Write a whole checkpoint before step 1, read it back and compare; a failure ends the job."}
          .own(),
      Option{KEY(checkpoint.validate_on_resume),
             "The same on resume: \"full\" writes all bytes under a temporary name, \"probe\" a small file."}
          .one_of({"full", "probe"})
          .own(),
      Option{KEY(checkpoint.writers),
             "Who writes what replicas share: all, a part each, or \"one_replica\" (few files, for shared "
             "and cloud disks)."}
          .one_of({"all", "one_replica"})
          .own(),
      Option{KEY(checkpoint.on_save_failure),
             "After a failed periodic save: end the job, or go on and try the next."}
          .one_of({"stop", "continue"})
          .own(),
      Option{KEY(checkpoint.resume_mode),
             "\"recover\" goes on as before, \"transfer\" takes weights alone, \"continue\" chosen parts."}
          .one_of({"recover", "transfer", "continue"})
          .own(),
      Option{KEY(checkpoint.components), "The only parts that are read; empty: all."}.one_of(parts).own(),
      Option{KEY(checkpoint.on_config_change),
             "A resumed run's settings differ from the saved ones: refuse, keep the saved or take the new."}
          .one_of({"error", "keep", "override"})
          .own(),
      Option{KEY(checkpoint.on_corrupt),
             "The newest checkpoint does not verify: take the one before, or stop."}
          .one_of({"previous", "error"})
          .own(),
      Option{KEY(checkpoint.full_verify_on_load),
             "Also check the CRC of every archive and the hash of every tensor that is read."}
          .own(),
      Option{KEY(checkpoint.verify_finite),
             "Refuse to start from weights or states with NaN or infinite numbers; none are ever saved."}
          .own(),
      Option{KEY(checkpoint.allow_dtype_cast), "Convert tensors saved in another dtype, with a warning."}
          .own(),
      Option{KEY(checkpoint.allow_other_tokenizer),
             "Load weights that were trained with another tokenizer, with a warning."}
          .own(),
      Option{
          KEY(checkpoint.rename),
          "Names there -> names here, applied on load; a name there is a regular expression for all of it."}
          .own(),
  };
  for (Option& option : options) option.when(kCheckpoint);
  return options;
}

std::vector<Option> ema() {
  std::vector<Option> options = {
      {KEY(ema.enable), "Keep an exponential moving average of the weights, in fp32, sharded as they are."},
      Option{KEY(ema.decay), "Weight of the old average in each update."}.at_least(0).below(1),
      Option{KEY(ema.every), "Optimizer steps between two updates of the average."}.at_least(1),
      Option{KEY(ema.device), "Where the average lives: with the weights, or in host memory."}.one_of(
          {"same", "cpu"}),
      {KEY(ema.validate_with_ema), "Validation runs with the averaged weights."},
      Option{KEY(ema.on_missing), "The checkpoint holds no average: refuse, or start it from the weights."}
          .one_of({"error", "init_from_model"}),
  };
  for (Option& option : options) option.when(kEma).own();
  return options;
}

std::vector<Option> activation_checkpoint() {
  return {
      Option{KEY(activation_checkpoint.mode), "Which activations are computed again in the backward."}.one_of(
          {"selective", "full", "memory_budget", "none"}),
      Option{KEY(activation_checkpoint.selective_ac_option),
             "\"op\": save costly operations only; \"N\": every Nth block in full."}
          .number_text_or("op", "\"op\" or a positive whole number in quotes")
          .when(kSelective),
      Option{KEY(activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns),
             "Linears whose matmul shapes are always computed again (\"op\")."}
          .when(kSelective),
      Option{KEY(activation_checkpoint.early_stop), "Stop recomputing once all is there."}.only_python(),
      Option{KEY(activation_checkpoint.memory_budget), "Share of the activations kept."}
          .at_least(0)
          .at_most(1)
          .when(kMemoryBudget),
      Option{KEY(activation_checkpoint.visualize_memory_budget_pareto), "Draw the trade-off."}.when(
          kMemoryBudget),
      Option{KEY(activation_checkpoint.preserve_rng_state),
             "Restore random state for recomputation (nothing here is random)."}
          .only_python(),
      Option{KEY(activation_checkpoint.determinism_check), "Compare recomputed tensors' shapes."}
          .one_of({"default", "none"})
          .only_python(),
      Option{KEY(activation_checkpoint.debug), "Record operations for torch's error messages."}.only_python(),
  };
}

std::vector<Option> compile() {
  return {
      Option{KEY(compile.enable), "Compile the model with torch.compile."}.only_python(),
      Option{KEY(compile.components), "What is compiled."}
          .one_of({"model", "loss"})
          .when(kCompile)
          .only_python(),
      Option{KEY(compile.backend), "torch.compile's backend."}.when(kCompile).only_python(),
  };
}

std::vector<Option> float8() {
  return {
      Option{KEY(quantize.linear.float8.enable_fsdp_float8_all_gather),
             "Gather weights in FP8, cast from their fp32 masters (tensor-wise scaling)."}
          .when(kFloat8),
      Option{KEY(quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp),
             "All scales in one reduction after the update; else a unit's before its first gather."}
          .when(kFloat8),
      Option{KEY(quantize.linear.float8.recipe_name), "Granularity of the scales."}
          .one_of({"tensorwise", "rowwise", "rowwise_with_gw_hp"})
          .when(kFloat8),
      Option{KEY(quantize.linear.float8.filter_fqns), "Linears left alone, by part of their name."}.when(
          kFloat8),
      Option{KEY(quantize.linear.float8.emulate), "Compute in fp32 what FP8 hardware would."}.when(kFloat8),
  };
}

std::vector<Option> mx() {
  return {
      Option{KEY(quantize.linear.mx.mxfp8_dim1_cast_kernel_choice), "Kernel of the column-wise cast."}
          .one_of({"triton", "cuda", "torch"})
          .when(kMx),
      Option{KEY(quantize.linear.mx.recipe_name), "MX recipe."}.when(kMx),
      Option{KEY(quantize.linear.mx.filter_fqns), "Linears left alone, by part of their name."}.when(kMx),
  };
}

std::vector<Option> comm() {
  return {
      Option{KEY(comm.init_timeout_seconds), "Longest wait for a collective until the first step is done."}
          .at_least(1)
          .at_most(kSizeLimit),
      Option{KEY(comm.train_timeout_seconds), "Longest wait for a collective afterwards."}
          .at_least(1)
          .at_most(kSizeLimit),
      Option{KEY(comm.trace_buf_size), "Collectives remembered for the dump after a timeout; 0: none."}
          .at_least(0)
          .at_most(kSizeLimit),
      {KEY(comm.save_traces_folder), "Folder of those dumps, under dump_folder."},
      {KEY(comm.save_traces_file_prefix), "Their file name, before the rank."},
      Option{KEY(comm.mode),
             "fake_backend: one process plays rank 0 of NGPU ranks (a dry run: no checkpoints, no metrics)."}
          .one_of({"default", "fake_backend", "local_tensor"}),
  };
}

std::vector<Option> fault_tolerance() {
  std::vector<Option> options = {
      {KEY(fault_tolerance.enable), "Replicas that come and go (torchft)."},
      Option{KEY(fault_tolerance.process_group), "Backend between replicas."}.one_of({"gloo", "nccl"}),
      Option{KEY(fault_tolerance.process_group_timeout_ms), "Its timeout."}.at_least(1),
      Option{KEY(fault_tolerance.replica_id), "This replica."}.at_least(0),
      Option{KEY(fault_tolerance.group_size), "Replicas."}.at_least(0),
      Option{KEY(fault_tolerance.min_replica_size), "Replicas needed for a step."}.at_least(1),
      Option{KEY(fault_tolerance.semi_sync_method), "Rare synchronisation."}.one_of({"local_sgd", "diloco"}),
  };
  for (Option& option : options) option.when(kFaultTolerance);
  return options;
}

std::vector<Option> validation() {
  return {
      {KEY(validation.enable), "Validate at step 1 and every freq steps, after the update."},
      Option{KEY(validation.dataset),
             "As training.dataset; c4_validation goes with it. Default corpus: the novel held out."}
          .one_of({"c4_validation", "c4_test", "c4", "jsonl"})
          .when(kValidation),
      Option{KEY(validation.dataset_path), "As training.dataset_path."}.a_path().when(kValidation),
      Option{KEY(validation.local_batch_size), "Sequences a rank and validation step."}
          .at_least(1)
          .at_most(kSizeLimit)
          .when(kValidation),
      Option{KEY(validation.seq_len), "Tokens of one sequence."}
          .at_least(1)
          .at_most(kSizeLimit)
          .when(kValidation),
      Option{KEY(validation.freq), "Steps between validations."}.at_least(1).when(kValidation),
      Option{
          KEY(validation.steps),
          "Batches per rank of one validation (more ranks see other data: see sequences); -1: the whole set."}
          .at_least(1)
          .or_value(-1)
          .when(kValidation),
      Option{KEY(validation.sequences),
             "Sequences of one validation over all ranks: the first of the set, each once, on any mesh; in "
             "place of steps."}
          .at_least(1)
          .when(kValidation)
          .own(),
      Option{KEY(validation.text_field), "As training.text_field, which it is unless set."}.own().when(
          kValidation),
  };
}

std::vector<Option> validation_dataloader() {
  std::vector<Option> options = {
      Option{KEY(validation.dataloader.num_workers), "Worker processes."}.at_least(0),
      {KEY(validation.dataloader.persistent_workers), "Keep the workers between epochs."},
      {KEY(validation.dataloader.pin_memory), "Copy batches to pinned memory."},
      Option{KEY(validation.dataloader.prefetch_factor), "Batches fetched ahead by each worker."}.at_least(1),
  };
  for (Option& option : options) option.when(kValidation).only_python();
  return options;
}

std::vector<Option> debug() {
  return {
      Option{KEY(debug.seed), "Seed of weights and data order; unset: chosen by rank 0."}.at_least(0),
      {KEY(debug.deterministic), "Only deterministic algorithms; an operation without one is an error."},
      Option{KEY(debug.deterministic_warn_only), "A warning instead of that error."}.when(kDeterministic),
      Option{KEY(debug.moe_force_load_balance), "Deal tokens to experts evenly."}.when(kExperts),
  };
}

std::vector<Section> build() {
  return {
      {"job", "The job as a whole.", job()},
      {"profiling", "Traces and memory snapshots.", profiling()},
      {"metrics", "What is logged and written while training.", metrics()},
      {"model", "Which model, and its tokenizer.", model()},
      {"model.args", "Dimensions that replace those of the flavour.", model_args()},
      {"optimizer", "The optimizer.", optimizer()},
      {"lr_scheduler", "Warm-up, stable phase and decay of the learning rate.", lr_scheduler()},
      {"training", "Data, batch, length and precision.", training()},
      {"training.dataloader", "Workers of torch's loader.", training_dataloader()},
      {"parallelism", "How the ranks divide the work.", parallelism()},
      {"checkpoint", "Saving and resuming; docs/resume.md says how the keys of a resume work together.",
       checkpoint()},
      {"ema", "A moving average of the weights.", ema()},
      {"activation_checkpoint", "Memory of activations against recomputation.", activation_checkpoint()},
      {"compile", "torch.compile; the C++ trainer has nothing to compile.", compile()},
      {"quantize.linear.float8", "FP8 linears.", float8()},
      {"quantize.linear.mx", "MXFP8 linears.", mx()},
      {"quantize.grouped_mm.float8",
       "FP8 experts.",
       {Option{KEY(quantize.grouped_mm.float8.fqns), "Experts converted, by name."}.when(kGroupedFloat8)}},
      {"quantize.grouped_mm.mx",
       "MXFP8 experts.",
       {Option{KEY(quantize.grouped_mm.mx.recipe_name), "MX recipe."}.when(kGroupedMx),
        Option{KEY(quantize.grouped_mm.mx.fqns), "Experts converted, by name."}.when(kGroupedMx)}},
      {"comm", "Timeouts and traces of communication.", comm()},
      {"memory_estimation",
       "Estimating memory without a device.",
       {Option{KEY(memory_estimation.enable), "Estimate instead of training."}.when(kMemoryEstimation),
        Option{KEY(memory_estimation.disable_fake_mode), "Estimate with real tensors."}.when(
            kMemoryEstimation)}},
      {"fault_tolerance", "torchft.", fault_tolerance()},
      {"experimental",
       "Python extensions.",
       {Option{KEY(experimental.custom_import), "Python module to import."}.when(kCustomImport),
        Option{KEY(experimental.custom_args_module), "Former name of job.custom_config_module."}.when(
            kCustomArgsModule)}},
      {"validation", "The loss on data that is not trained on.", validation()},
      {"validation.dataloader", "Workers of torch's loader.", validation_dataloader()},
      {"debug", "Reproducibility.", debug()},
  };
}

#undef KEY

}  // namespace

const std::vector<Section>& schema() {
  static const std::vector<Section> sections = build();
  return sections;
}

const Option* find_option(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Option*> map;
    for (const Section& section : schema()) {
      for (const Option& option : section.options) map[option.name] = &option;
    }
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

bool is_section(std::string_view name) {
  return std::any_of(schema().begin(), schema().end(), [&](const Section& section) {
    return section.name.starts_with(name) &&
           (section.name.size() == name.size() || section.name[name.size()] == '.');
  });
}

std::string status(const Option& option) {
  if (option.python_only) return "no effect here";
  return option.feature != nullptr && !option.feature->refusal.empty() ? "not available" : "works";
}

}  // namespace hyperion
