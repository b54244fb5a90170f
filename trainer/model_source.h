// The model behind a checkpoint, for commands that look at one: its dimensions, its weights, its tokenizer.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer/config/job_config.h"
#include "trainer/inference/commands.h"

namespace hyperion {

// The [model] table of the job that wrote a checkpoint of ours; nothing for checkpoints of other programs.
std::optional<JobConfig::Model> saved_model(const std::filesystem::path& checkpoint);

// The dimensions come from the TOML file `config` when it is given, else from config.json beside safetensors,
// else from the configuration in the checkpoint. Throws Error(kUsage) when none of them says, or `checkpoint`
// is none.
ModelArgs model_of(const std::filesystem::path& checkpoint, const std::string& config);

// The folder of the tokenizer that the model was trained with, by the same sources: as written there, which
// is a path for resolve_input(). The checkpoint's own folder where none of them says.
std::string tokenizer_of(const std::filesystem::path& checkpoint, const std::string& config);

ModelSource model_source(const CommandLine::Look& look);

}  // namespace hyperion
