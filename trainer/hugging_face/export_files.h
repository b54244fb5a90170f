// The files of a model for Hugging Face that hold no weights.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "models/flavors/model_args.h"
#include "trainer/config/choices.h"
#include "trainer/data/tokenizer/tokenizer.h"

namespace hyperion::trainer {

// The files next to safetensors that make their folder a model which transformers and Hyperion open by its
// name: config.json, generation_config.json and the tokenizer's files from `tokenizer_path`. Without a
// tokenizer: config.json alone.
std::map<std::string, std::string> hugging_face_files(const models::ModelArgs& args, checkpoint::Dtype dtype,
                                                      const Tokenizer* tokenizer,
                                                      const std::filesystem::path& tokenizer_path);

}  // namespace hyperion::trainer
