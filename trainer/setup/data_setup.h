// From dataset names and paths of the configuration to a tokenizer and loaders, and from batches to tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "models/transformer.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// The files behind the training or validation data: dataset_path when given, else the default corpus or its
// held-out novel. Throws Error(kUsage) with the remedy when they are missing.
std::string training_files(const JobConfig& config);
std::string validation_files(const JobConfig& config);

// How data are named to the user: the keys (or options) of their path and text field.
struct DataKeys {
  std::string path, field;
};
inline const DataKeys kTrainingKeys = {"training.dataset_path", "training.text_field"};
inline const DataKeys kValidationKeys = {"validation.dataset_path", "validation.text_field"};

// Looks at the first line of each file with text: see check_text_field(). Validation: when it is enabled.
void check_training_documents(const JobConfig& config);
void check_validation_documents(const JobConfig& config, const DataKeys& keys = kValidationKeys);

// The training data, for messages and records: absolute path and, unless it is "text", field.
std::string describe_training_data(const JobConfig& config);

struct DataSetup {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string tokenizer_path;
};
DataSetup load_tokenizer(const JobConfig& config);

struct LoaderContext {  // of this rank in the mesh, and what the stream is shuffled by
  int64_t dp_rank = 0, dp_degree = 1;
  uint64_t seed = 0;
  int64_t vocab_size = 0;
};
// `node`: the ranks of this node tokenise together (see LoaderOptions).
std::unique_ptr<data::DataLoader> training_loader(const JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context,
                                                  std::shared_ptr<data::NodeDocuments> node = nullptr);
std::unique_ptr<data::DataLoader> validation_loader(const JobConfig& config, const DataSetup& data,
                                                    const LoaderContext& context,
                                                    const DataKeys& keys = kValidationKeys);

// Labels that count (not -100).
int64_t valid_tokens(const data::Batch& batch);

// Rows with such a label.
int64_t sequences_with_labels(const data::Batch& batch);

// Moves batches to the device; keeps the RoPE tables, which are the same for every batch without document
// masks.
class BatchMover {
 public:
  BatchMover(const models::Transformer& model, at::Device device) : model_(model), device_(device) {}
  models::Microbatch move(const data::Batch& batch);

 private:
  const models::Transformer& model_;
  at::Device device_;
  models::SequenceContext plain_;
  int64_t plain_seq_len_ = 0;
};

}  // namespace hyperion::trainer
