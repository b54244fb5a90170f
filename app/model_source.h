// The model of a checkpoint, for commands that use one: its dimensions, its weights, its tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "app/command_line.h"
#include "app/inference/engine.h"
#include "trainer/checkpointing/job_record.h"

namespace hyperion::app {

// Model and tokenizer of a checkpoint.
struct ModelOrigin {
  config::JobConfig::Model model;  // with hf_assets_path as it was written: a path for resolve_input()
  std::string tokenizer;           // path for resolve_input()
  std::string tokenizer_by;        // what names it, for messages
  int64_t seq_len = 0;             // of the sequences that the weights were trained with; 0: not known
  checkpointing::JobRecord
      record;  // what the checkpoint says: the tokenizer that the weights were trained with ...
};

// From the TOML file `config` when it is given, else from config.json in the folder of safetensors, else from
// the record in the checkpoint. Throws Error(kUsage) when none of them names the model, or `checkpoint` is no
// checkpoint.
ModelOrigin model_origin(const std::filesystem::path& checkpoint, const std::string& config);

// What generate and eval need of a checkpoint, whatever its format.
struct ModelSource {
  ModelOrigin origin;
  models::ModelArgs args;
  inference::LoadWeights load;  // the weights, or their average
};

ModelSource model_source(const CommandLine::Inference& options);

}  // namespace hyperion::app
