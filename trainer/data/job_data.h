// Creates the tokenizer and the loaders from the configuration's dataset names and paths.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Return the files of the training or validation data: dataset_path if set, else the default corpus or its
// held-out novel. Throw Error(kUsage) with the remedy if the files are missing.
std::string training_files(const config::JobConfig& config);
std::string validation_files(const config::JobConfig& config);

// Keys (or options) of the data's path and text field, for messages.
struct DataKeys {
  std::string path, field;
};
inline const DataKeys kTrainingKeys = {"training.dataset_path", "training.text_field"};
inline const DataKeys kValidationKeys = {"validation.dataset_path", "validation.text_field"};

// Check the first line of each text file (check_text_field()). Validation data are checked only if validation
// is enabled.
void check_training_documents(const config::JobConfig& config);
void check_validation_documents(const config::JobConfig& config, const DataKeys& keys = kValidationKeys);

// Describes the training data for messages and records: the absolute path and, unless it is "text", the
// field.
std::string describe_training_data(const config::JobConfig& config);

struct DataSetup {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string tokenizer_path;
};
DataSetup load_tokenizer(const config::JobConfig& config);

struct LoaderContext {  // this rank's place in the mesh, and the shuffle seed
  int64_t dp_rank = 0, dp_degree = 1;
  uint64_t seed = 0;
  int64_t vocab_size = 0;
};
// If `node` is given, the ranks of this node share tokenization (LoaderOptions).
std::unique_ptr<data::DataLoader> training_loader(const config::JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context,
                                                  std::shared_ptr<data::NodeDocuments> node = nullptr);
std::unique_ptr<data::DataLoader> validation_loader(const config::JobConfig& config, const DataSetup& data,
                                                    const LoaderContext& context,
                                                    const DataKeys& keys = kValidationKeys);

}  // namespace hyperion::trainer
