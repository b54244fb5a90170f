// Reads and checks the weights of checkpoints that Hyperion, torchtitan or Hugging Face wrote.
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

// Throws Error(kUsage) if config.json next to Hugging Face's weights describes a model other than `args`. It
// only warns if the job `overrides` config.json.
void require_same_model(const models::ModelArgs& args, const std::filesystem::path& folder, bool overrides);

// Returns the names of a DCP checkpoint's model, or of its averages without their prefix. `names` maps our
// name to the key.
checkpoint::StoredNames own_names(const checkpoint::OpenCheckpoint& checkpoint,
                                  const std::map<std::string, std::string>& names, bool ema);

// Throws IncompatibleCheckpoint if the checkpoint's shapes belong to a model other than `args`. The message
// says "10 layers there, 8 here; dim 64 there, 32 here", then `remedy`.
void require_same_dimensions(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                             const checkpoint::StoredNames& names, const std::string& remedy);

// Explains names that differ only by the head, because one side is tied and the other is not. Returns "" for
// other differences.
std::string explain_head(const checkpoint::NameDifferences& differences, bool hugging_face);
// Returns the remedy that unties the head of the model in `folder`. `options` are the command's options for
// that, used if config.json does not say it.
std::string untie_remedy(const std::filesystem::path& folder, bool hugging_face, const std::string& options);

// Throws IncompatibleCheckpoint unless the checkpoint has exactly the model's names and shapes, for commands
// that read all weights. It reads a tied head that is stored in addition to the table.
void require_complete_model(const models::ModelArgs& args, const checkpoint::OpenCheckpoint& checkpoint,
                            const checkpoint::StoredNames& names);

// StoredWeights reads unsharded weights of a checkpoint, one parameter at a time, in one process, for
// evaluation and generation.
class StoredWeights {
 public:
  // With `ema` it reads the averages. Names and shapes must be the model's; floating-point types are
  // converted. Throws Error(kBadData) with all differences.
  StoredWeights(const std::filesystem::path& checkpoint, const models::ModelArgs& args, bool ema);
  // Fills `weight`, which is contiguous and has the parameter's global shape. A parameter that is not stored
  // (expert_bias of Hugging Face's qwen3_moe) stays unchanged. Throws Error(kBadData) if the stored values
  // hold NaN or infinite numbers.
  void load(const Parameter& parameter, const at::Tensor& weight) const;

 private:
  checkpoint::OpenCheckpoint checkpoint_;
  std::map<std::string, checkpoint::LoadItem> items_;  // by the parameter's name
};

}  // namespace hyperion::checkpointing
