#include "trainer/data/job_data.h"

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "data/token_shards.h"
#include "trainer/config/input_path.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTrainingCorpus = "data/austen.jsonl.gz";
constexpr const char* kHeldOutCorpus = "data/austen_heldout.jsonl.gz";

std::string files_of(const char* table, config::Dataset dataset,
                     const std::optional<std::string>& dataset_path, bool default_corpus,
                     const char* corpus) {
  if (dataset_path) return config::resolve_input(*dataset_path, config::install_root()).string();
  if (!default_corpus)
    throw_config(
        "{}.dataset = \"{}\" needs {}.dataset_path: JSON lines, Parquet or Arrow files with a text field, a "
        "folder or glob of them, token shards made by `hyperion tokenize`, or token files (docs/data.md)",
        table, text_of(dataset), table);
  const fs::path path = config::resolve_input(corpus, config::install_root());
  if (!path_exists(path, ExitCode::kUsage))
    throw_config(
        "{}.dataset = \"{}\" stands for the default corpus, but {} is not there: run scripts/setup.sh, or "
        "set {}.dataset_path",
        table, text_of(dataset), path.string(), table);
  return path.string();
}

data::TextField training_field(const config::JobConfig& config) {
  return {config.training.text_field, kTrainingKeys.field};
}

data::TextField validation_field(const config::JobConfig& config, const DataKeys& keys) {
  if (!config.validation.text_field) return {config.training.text_field, keys.field, kTrainingKeys.field};
  return {*config.validation.text_field, keys.field};
}

bool skips_bad_documents(const config::JobConfig& config) {
  return config.training.on_bad_document == config::OnBadDocument::kSkip;
}

data::LoaderOptions loader_options(const DataSetup& data, const LoaderContext& context,
                                   const std::string& path, data::TextField field) {
  data::LoaderOptions options;
  options.dataset_path = path;
  options.text_field = std::move(field);
  options.dp_rank = context.dp_rank;
  options.dp_degree = context.dp_degree;
  options.vocab_size = context.vocab_size;
  options.tokenizer_vocab_size = data.tokenizer->vocab_size();
  options.eos = data.tokenizer->eos_id();
  options.encode = [tokenizer = data.tokenizer](std::string_view text) {
    return tokenizer->encode(text, true, true);
  };
  options.tokenizer_path = data.tokenizer_path;
  options.tokenizer_fingerprint = data::tokenizer_fingerprint(data.tokenizer_path);
  return options;
}

}  // namespace

std::string training_files(const config::JobConfig& config) {
  return files_of("training", config.training.dataset, config.training.dataset_path,
                  config::uses_default_corpus(config), kTrainingCorpus);
}

std::string validation_files(const config::JobConfig& config) {
  return files_of("validation", config.validation.dataset, config.validation.dataset_path,
                  config::validates_on_default_corpus(config), kHeldOutCorpus);
}

DataSetup load_tokenizer(const config::JobConfig& config) {
  const fs::path path = config::resolve_input(config.model.hf_assets_path, config::install_root());
  DataSetup data{data::Tokenizer::load(path), path.string()};
  data::warn_of_missing_tokens(*data.tokenizer, path);
  return data;
}

void check_training_documents(const config::JobConfig& config) {
  const std::string path = training_files(config);
  if (config::uses_default_corpus(config))
    log_info("training.dataset = \"{}\" without dataset_path: reading the default corpus {}",
             text_of(config.training.dataset), path);
  data::check_text_field(path, training_field(config), kTrainingKeys.path, skips_bad_documents(config));
}

void check_validation_documents(const config::JobConfig& config, const DataKeys& keys) {
  if (!config.validation.enable) return;
  const std::string path = validation_files(config);
  if (config::validates_on_default_corpus(config))
    log_info("validation.dataset = \"{}\" without dataset_path: reading the default corpus {}",
             text_of(config.validation.dataset), path);
  data::check_text_field(path, validation_field(config, keys), keys.path, skips_bad_documents(config));
}

std::string describe_training_data(const config::JobConfig& config) {
  const std::string path = fs::absolute(training_files(config)).lexically_normal().string();
  const std::string& field = config.training.text_field;
  return field == "text" ? path : fmt::format("{}, field \"{}\"", path, field);
}

std::unique_ptr<data::DataLoader> training_loader(const config::JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context,
                                                  std::shared_ptr<data::NodeDocuments> node) {
  const auto& training = config.training;
  data::LoaderOptions options = loader_options(data, context, training_files(config), training_field(config));
  options.seq_len = training.seq_len;
  options.rows = training.local_batch_size;
  options.order = {.seed = context.seed,
                   .shuffle = training.shuffle,
                   .repeat = true,
                   .window = static_cast<uint64_t>(training.shuffle_window),
                   .skips_bad_documents = skips_bad_documents(config)};
  options.document_mask = training.document_mask;
  options.node = std::move(node);
  return std::make_unique<data::DataLoader>(std::move(options));
}

std::unique_ptr<data::DataLoader> validation_loader(const config::JobConfig& config, const DataSetup& data,
                                                    const LoaderContext& context, const DataKeys& keys) {
  const auto& validation = config.validation;
  data::LoaderOptions options =
      loader_options(data, context, validation_files(config), validation_field(config, keys));
  options.dataset_key = keys.path;
  options.seq_len = validation.seq_len;
  options.rows = validation.local_batch_size;
  options.order = {.seed = 0,
                   .shuffle = false,
                   .repeat = validation.steps > 0,
                   .skips_bad_documents = skips_bad_documents(config)};
  options.document_mask = config.training.document_mask;
  return std::make_unique<data::DataLoader>(std::move(options));
}

}  // namespace hyperion::trainer
