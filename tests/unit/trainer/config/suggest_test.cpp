#include "trainer/config/suggest.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"
#include "trainer/config/schema.h"

namespace hyperion::config {

TEST_CASE("a misspelt key finds the one that was meant") {
  CHECK(nearest_key("training.stesp") == "training.steps");
  CHECK(nearest_key("training.seqlen") == "training.seq_len");
  CHECK(nearest_key("checkpoint.intervall") == "checkpoint.interval");
  CHECK(nearest_key("trainig.steps") == "training.steps");
}

TEST_CASE("a key in the wrong section finds its own") {
  CHECK(nearest_key("training.lr") == "optimizer.lr");
  CHECK(nearest_key("training.tensor_parallel_degree") == "parallelism.tensor_parallel_degree");
  CHECK(nearest_key("lr") == "optimizer.lr");
}

TEST_CASE("what other programs call a key finds it, in the section at hand first") {
  const std::pair<const char*, const char*> cases[] = {
      {"batch_size", "training.local_batch_size"},
      {"training.batch_size", "training.local_batch_size"},
      {"validation.batch_size", "validation.local_batch_size"},
      {"per_device_train_batch_size", "training.local_batch_size"},
      {"gradient_accumulation_steps", "training.global_batch_size"},
      {"learning_rate", "optimizer.lr"},
      {"training.learning_rate", "optimizer.lr"},
      {"steps", "training.steps"},
      {"max_steps", "training.steps"},
      {"warmup_iters", "lr_scheduler.warmup_steps"},
      {"training.grad_clip", "training.max_norm"},
      {"sequence_length", "training.seq_len"},
      {"validation.sequence_length", "validation.seq_len"},
      {"save_steps", "checkpoint.interval"},
      {"logging_steps", "metrics.log_freq"},
      {"output_dir", "job.dump_folder"},
      {"tp", "parallelism.tensor_parallel_degree"},
      {"model.hidden_size", "model.args.dim"},
      {"num_hidden_layers", "model.args.n_layers"},
      {"model.n_layers", "model.args.n_layers"},
      {"seed", "debug.seed"},
      {"local_batch_size", "training.local_batch_size"},
  };
  for (const auto& [name, key] : cases) CHECK(nearest_key(name) == key);
}

TEST_CASE("what torchtitan 0.1 called a key finds the key of today, or is answered by what does the same") {
  const std::pair<const char*, const char*> renamed[] = {
      {"training.batch_size", "training.local_batch_size"},
      {"training.warmup_steps", "lr_scheduler.warmup_steps"},
      {"training.data_parallel_degree", "parallelism.data_parallel_shard_degree"},
      {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree"},
      {"training.compile", "compile.enable"},
      {"training.seed", "debug.seed"},
      {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor"},
      {"experimental.context_parallel_degree", "parallelism.context_parallel_degree"},
      {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree"},
      {"experimental.pipeline_parallel_split_points", "parallelism.module_fqns_per_model_part"},
      {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
      {"checkpoint.enable_checkpoint", "checkpoint.enable"},
      {"checkpoint.model_weights_only", "checkpoint.last_save_model_only"},
      {"job.print_args", "job.print_config"},
      {"memory_estimation.enabled", "memory_estimation.enable"},
  };
  for (const auto& [name, key] : renamed) {
    CAPTURE(name);
    CHECK(find_option(name) == nullptr);
    CHECK(former_key(name).empty());
    CHECK(nearest_key(name) == key);
  }
  const auto names = [](const char* text) { return Catch::Contains(text); };
  CHECK_THAT(former_key("optimizer.fused"), names("optimizer.implementation = \"fused\""));
  CHECK_THAT(former_key("metrics.rank_0_only"), names("metrics.save_for_all_ranks"));
  CHECK_THAT(former_key("experimental.pipeline_parallel_microbatches"),
             names("parallelism.pipeline_parallel_microbatch_size"));
  CHECK_THAT(former_key("model.attn_mask_type"), names("training.document_mask"));
  CHECK_THAT(former_section("float8"), names("[quantize.linear.float8]"));
  for (const Option& option : all_options()) CHECK(former_key(option.name).empty());
}

TEST_CASE("every key that a word of another program stands for exists") {
  for (const char* word : {"learning_rate",
                           "optim",
                           "adam_eps",
                           "adam_beta1",
                           "adam_beta2",
                           "warmup",
                           "decay_steps",
                           "lr_decay_style",
                           "min_lr",
                           "iters",
                           "batch_size",
                           "eval_batch_size",
                           "total_batch_size",
                           "block_size",
                           "grad_clip",
                           "data_path",
                           "val_data",
                           "eval_interval",
                           "eval_samples",
                           "eval_iters",
                           "precision",
                           "log_interval",
                           "tensorboard",
                           "wandb",
                           "save_interval",
                           "save_total_limit",
                           "pretrained",
                           "output_dir",
                           "tokenizer",
                           "model_size",
                           "hidden_size",
                           "num_layers",
                           "num_heads",
                           "num_kv_heads",
                           "intermediate_size",
                           "rope_base",
                           "rms_norm_eps",
                           "tie_embeddings",
                           "tp",
                           "max_position_embeddings",
                           "pp",
                           "cp",
                           "ep",
                           "fsdp",
                           "ddp",
                           "gradient_checkpointing",
                           "profile"}) {
    CAPTURE(word);
    CHECK(find_option(nearest_key(word)) != nullptr);
  }
}

TEST_CASE("nothing is suggested for what is like nothing") {
  CHECK(nearest_key("training.colour_of_the_logo").empty());
  CHECK(nearest_key(std::string(1 << 20, 'a')).empty());
  CHECK(nearest_section("zoo").empty());
}

TEST_CASE("a misspelt section finds the one that was meant") {
  CHECK(nearest_section("traning") == "training");
  CHECK(nearest_section("activation_checkpointing") == "activation_checkpoint");
  CHECK(nearest_section("lr_schedule") == "lr_scheduler");
}

TEST_CASE("no word that a key takes is said not to be available") {
  for (const Option& option : all_options())
    for (const std::string& word : option.choices) CHECK(unavailable_word(option.name, word).empty());
  for (const std::string& name : models::model_names())
    for (const std::string& flavor : models::model_flavors(name))
      CHECK(unavailable_word("model.flavor", flavor).empty());
  CHECK(unavailable_word("model.name", "").empty());
  CHECK(unavailable_word("model.name", std::string(1 << 20, 'a')).empty());
}

}  // namespace hyperion::config
