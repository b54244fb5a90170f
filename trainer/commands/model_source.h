// The model of a checkpoint, for commands that use one: its dimensions, its weights, its tokenizer.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "trainer/checkpointing/job_record.h"
#include "trainer/commands/inference_commands.h"
#include "trainer/config/job_config.h"
#include "trainer/data/tokenizer/tokenizer.h"

namespace hyperion {

// Model and tokenizer of a checkpoint.
struct ModelOrigin {
  JobConfig::Model model;    // with hf_assets_path as it was written: a path for resolve_input()
  std::string tokenizer;     // path for resolve_input()
  std::string tokenizer_by;  // what names it, for messages
  TokenizerRecord stored;    // the tokenizer that the weights were trained with
};

// From the TOML file `config` when it is given, else from config.json in the folder of safetensors, else from
// the record in the checkpoint. Throws Error(kUsage) when none of them says, or `checkpoint` is none.
ModelOrigin model_origin(const std::filesystem::path& checkpoint, const std::string& config);

ModelSource model_source(const CommandLine::Look& look);

}  // namespace hyperion
