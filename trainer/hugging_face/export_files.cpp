#include "trainer/hugging_face/export_files.h"

#include <utility>

#include "trainer/hugging_face/config.h"

namespace hyperion::trainer {
namespace fs = std::filesystem;

std::map<std::string, std::string> hugging_face_files(const models::ModelArgs& args, checkpoint::Dtype dtype,
                                                      const Tokenizer* tokenizer,
                                                      const fs::path& tokenizer_path) {
  HfExport texts{.dtype = std::string(checkpoint::torch_name(dtype))};
  std::map<std::string, std::string> files;
  if (tokenizer != nullptr) {
    files = tokenizer_files(tokenizer_path);
    texts.bos_token_id = tokenizer->bos_id();
    texts.eos_token_id = tokenizer->eos_id();
  }
  files["config.json"] = hf_config(args, texts);
  if (std::string generation = hf_generation_config(texts); !generation.empty())
    files["generation_config.json"] = std::move(generation);
  return files;
}

}  // namespace hyperion::trainer
