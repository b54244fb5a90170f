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
