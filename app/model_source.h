// Finds a checkpoint's model for the commands that use one: its dimensions, weights and tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "app/command_line.h"
#include "app/inference/engine.h"
#include "trainer/checkpointing/job_record.h"

namespace hyperion::app {

// Model and tokenizer of a checkpoint.
struct ModelOrigin {
  config::JobConfig::Model model;  // hf_assets_path is as written: a path for resolve_input()
  std::string tokenizer;           // path for resolve_input()
  std::string tokenizer_by;        // origin of `tokenizer`, for messages
  int64_t seq_len = 0;             // of the training sequences; 0 if unknown
  checkpointing::JobRecord
      record;  // what the checkpoint says: the tokenizer that the weights were trained with ...
};

// Reads the TOML file `config` if given, else config.json in the folder of safetensors, else the checkpoint's
// record. Throws Error(kUsage) if none of them names the model or `checkpoint` is not a checkpoint.
ModelOrigin model_origin(const std::filesystem::path& checkpoint, const std::string& config);

// The parts of a checkpoint, of any format, that generate and eval need.
struct ModelSource {
  ModelOrigin origin;
  models::ModelArgs args;
  inference::LoadWeights load;  // the weights, or their average
};

ModelSource model_source(const CommandLine::Inference& options);

}  // namespace hyperion::app
