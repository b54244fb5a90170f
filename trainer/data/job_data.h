// From dataset names and paths of the configuration to a tokenizer and loaders.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// The files behind the training or validation data: dataset_path when given, else the default corpus or its
// held-out novel. Throws Error(kUsage) with the remedy when they are missing.
std::string training_files(const config::JobConfig& config);
std::string validation_files(const config::JobConfig& config);

// How data are named to the user: the keys (or options) of their path and text field.
struct DataKeys {
  std::string path, field;
};
inline const DataKeys kTrainingKeys = {"training.dataset_path", "training.text_field"};
inline const DataKeys kValidationKeys = {"validation.dataset_path", "validation.text_field"};

// Looks at the first line of each file with text: see check_text_field(). Validation: when it is enabled.
void check_training_documents(const config::JobConfig& config);
void check_validation_documents(const config::JobConfig& config, const DataKeys& keys = kValidationKeys);

// The training data, for messages and records: absolute path and, unless it is "text", field.
std::string describe_training_data(const config::JobConfig& config);

struct DataSetup {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string tokenizer_path;
};
DataSetup load_tokenizer(const config::JobConfig& config);

struct LoaderContext {  // of this rank in the mesh, and what the stream is shuffled by
  int64_t dp_rank = 0, dp_degree = 1;
  uint64_t seed = 0;
  int64_t vocab_size = 0;
};
// `node`: the ranks of this node tokenise together (see LoaderOptions).
std::unique_ptr<data::DataLoader> training_loader(const config::JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context,
                                                  std::shared_ptr<data::NodeDocuments> node = nullptr);
std::unique_ptr<data::DataLoader> validation_loader(const config::JobConfig& config, const DataSetup& data,
                                                    const LoaderContext& context,
                                                    const DataKeys& keys = kValidationKeys);

}  // namespace hyperion::trainer
