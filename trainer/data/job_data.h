// Creates the tokenizer and the loaders from the configuration's dataset names and paths.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Keys (or options) of the data's path and text field, for messages.
struct DataKeys {
  std::string path, field;
};
inline const DataKeys kTrainingKeys = {"training.dataset_path", "training.text_field"};
inline const DataKeys kValidationKeys = {"validation.dataset_path", "validation.text_field"};

// Return the sources of training or validation: those of the list, sorted by name, else dataset_path, else
// the default corpus or its held-out novel. Throw Error(kUsage) with the remedy if files are missing.
std::vector<data::SourceOptions> training_data(const config::JobConfig& config);
std::vector<data::SourceOptions> validation_data(const config::JobConfig& config,
                                                 const DataKeys& keys = kValidationKeys);

// Check the first line of each text file (check_text_field()). Validation data are checked only if validation
// is enabled.
void check_training_documents(const config::JobConfig& config);
void check_validation_documents(const config::JobConfig& config, const DataKeys& keys = kValidationKeys);

// Describes the training data for messages and records: of each source its name, if any, the absolute path
// and, unless it is "text", the field.
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
// With `ranks`, those of the job, the ranks of a node share tokenization (SourceOptions::node); collective
// then.
std::unique_ptr<data::DataLoader> training_loader(const config::JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context, Coordinator* ranks = nullptr);

// A source of the validation, which has a loss of its own.
struct ValidationLoader {
  std::string name;  // "" for the only one without a list
  std::unique_ptr<data::DataLoader> loader;
};
std::vector<ValidationLoader> validation_loaders(const config::JobConfig& config, const DataSetup& data,
                                                 const LoaderContext& context,
                                                 const DataKeys& keys = kValidationKeys);

}  // namespace hyperion::trainer
