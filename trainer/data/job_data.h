// Creates the tokenizer and the loaders from the configuration's dataset names and paths.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// A data set of a job: one of training.sources or validation.sources, or the only one.
struct DataSet {
  std::string name;  // of the source; "" for the only data set without sources
  std::string path;  // of its files
  std::string key;   // that set the path, for messages
  data::TextField field;
  double weight = 1;
  std::optional<uint64_t> max_epochs{};
};

// Return the data sets of training or validation: the sources, sorted by name, else dataset_path, else the
// default corpus or its held-out novel. Throw Error(kUsage) with the remedy if files are missing.
std::vector<DataSet> training_data(const config::JobConfig& config);
std::vector<DataSet> validation_data(const config::JobConfig& config, const DataKeys& keys = kValidationKeys);

// Check the first line of each text file (check_text_field()). Validation data are checked only if validation
// is enabled.
void check_training_documents(const config::JobConfig& config);
void check_validation_documents(const config::JobConfig& config, const DataKeys& keys = kValidationKeys);

// Describes the training data for messages and records: of each data set its name, if any, the absolute path
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
// If `nodes` are given, one for each of training_data(), the ranks of this node share tokenization
// (LoaderOptions).
std::unique_ptr<data::DataLoader> training_loader(
    const config::JobConfig& config, const DataSetup& data, const LoaderContext& context,
    std::vector<std::shared_ptr<data::NodeDocuments>> nodes = {});

// A data set of the validation, which has a loss of its own.
struct ValidationLoader {
  std::string name;  // "" for the only data set without sources
  std::unique_ptr<data::DataLoader> loader;
};
std::vector<ValidationLoader> validation_loaders(const config::JobConfig& config, const DataSetup& data,
                                                 const LoaderContext& context,
                                                 const DataKeys& keys = kValidationKeys);

}  // namespace hyperion::trainer
