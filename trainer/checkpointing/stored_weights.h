// Weights as checkpoints store them, whatever wrote them: Hyperion, torchtitan or Hugging Face.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "checkpoint/loader.h"
#include "models/args/model_args.h"

namespace hyperion::checkpointing {

// Throws Error(kUsage) when config.json next to Hugging Face's weights describes another model than `args`,
// or warns where the job `overrides` it.
void require_same_model(const models::ModelArgs& args, const std::filesystem::path& folder, bool overrides);

// Names of a DCP checkpoint's model, or of its averages without their prefix. `names`: name here -> key.
checkpoint::StoredNames own_names(const checkpoint::OpenCheckpoint& checkpoint,
                                  const std::map<std::string, std::string>& names, bool ema);

// Throws IncompatibleCheckpoint when the shapes of a checkpoint's weights are of another model
// than `args`: in words ("10 layers there, 8 here; dim 64 there, 32 here"), with `remedy`.
void require_same_dimensions(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                             const checkpoint::StoredNames& names, const std::string& remedy);

// What explains names that differ by the head alone, of which one side has its own and the other uses the
// embedding's table; "" for other differences.
std::string explain_head(const checkpoint::NameDifferences& differences, bool hugging_face);
// How a model has a head of its own whose weights are in `folder`. `options`: how the command is told so
// where config.json does not say it.
std::string untie_remedy(const std::filesystem::path& folder, bool hugging_face, const std::string& options);

// Throws IncompatibleCheckpoint unless the names and shapes of a checkpoint are the model's, which a command
// that trains nothing reads as a whole; reads a tied head that is stored beside the table.
void require_complete_model(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                            const checkpoint::StoredNames& names);

// Whole weights of a checkpoint, one parameter at a time, on one process: for evaluation and generation.
class StoredWeights {
 public:
  // `ema`: the averages instead. Names and shapes must be the model's; floating-point types are converted.
  // Throws Error(kBadData) with all differences.
  StoredWeights(const std::filesystem::path& checkpoint, const models::ModelArgs& args, bool ema);
  // `weight`: contiguous, of the parameter's global shape; what is not stored (expert_bias of a qwen3_moe of
  // Hugging Face) stays as it is. Throws Error(kBadData) when it holds NaN or
  // infinite numbers.
  void load(const Parameter& parameter, const at::Tensor& weight) const;

 private:
  checkpoint::OpenCheckpoint checkpoint_;
  std::map<std::string, checkpoint::LoadItem> items_;  // by the parameter's name
};

}  // namespace hyperion::checkpointing
