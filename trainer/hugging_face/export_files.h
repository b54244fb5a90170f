// The files of a model for Hugging Face that hold no weights.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::hugging_face {

struct HuggingFaceFiles {
  std::map<std::string, std::string> files;  // name -> content
  std::vector<std::string> remarks;          // a line each: what a reader may not expect in them
};

// The files next to safetensors that make their folder a model which transformers and Hyperion open by its
// name: config.json, generation_config.json and the tokenizer's files from `tokenizer_path`, with what was
// imported. An imported max_position_embeddings stays unless [model.args] sets max_seq_len, because a
// flavour's is not that of the weights, or training had longer sequences. Ids beyond the vocabulary are left
// out. Without a tokenizer: not its files nor its BOS and EOS. `trained_seq_len`: training.seq_len of the job
// that made the weights; 0: not known.
HuggingFaceFiles hugging_face_files(const config::JobConfig::Model& model, checkpoint::Dtype dtype,
                                    const data::Tokenizer* tokenizer,
                                    const std::filesystem::path& tokenizer_path,
                                    const ImportedSettings& imported, int64_t trained_seq_len);

}  // namespace hyperion::hugging_face
