#include "trainer/data/job_data.h"

#include <algorithm>
#include <utility>

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

data::TextField validation_field(const config::JobConfig& config, const DataKeys& keys) {
  if (!config.validation.text_field) return {config.training.text_field, keys.field, kTrainingKeys.field};
  return {*config.validation.text_field, keys.field};
}

bool skips_bad_documents(const config::JobConfig& config) {
  return config.training.on_bad_document == config::OnBadDocument::kSkip;
}

// The sources of a list. `otherwise` is the text field of those that set none.
std::vector<data::SourceOptions> listed_data(const std::string& list, const config::DataSources& listed,
                                             const data::TextField& otherwise) {
  std::vector<data::SourceOptions> sources;
  for (const config::DataSource& one : listed) {
    data::SourceOptions& source = sources.emplace_back();
    source.name = config::name_of(one);
    source.path = config::resolve_input(one.path, config::install_root()).string();
    source.key = fmt::format("{}[{}].path", list, sources.size() - 1);
    const std::string field_key = fmt::format("{}[{}].text_field", list, sources.size() - 1);
    source.text_field = one.text_field ? data::TextField{*one.text_field, field_key}
                                       : data::TextField{otherwise.name, field_key, otherwise.key};
    source.weight = one.weight;
    if (one.max_epochs) source.max_epochs = static_cast<uint64_t>(*one.max_epochs);
  }
  std::ranges::sort(sources, {}, &data::SourceOptions::name);  // the order of the file changes nothing
  return sources;
}

data::LoaderOptions loader_options(const DataSetup& data, const LoaderContext& context) {
  data::LoaderOptions options;
  options.dp_rank = context.dp_rank;
  options.dp_degree = context.dp_degree;
  options.tokens = {.vocab_size = static_cast<uint64_t>(context.vocab_size),
                    .tokenizer_vocab_size = static_cast<uint64_t>(data.tokenizer->vocab_size()),
                    .eos = data.tokenizer->eos_id()};
  options.encode = [tokenizer = data.tokenizer](std::string_view text) {
    return tokenizer->encode(text, data::kBosAndEos);
  };
  options.tokenizer_path = data.tokenizer_path;
  options.tokenizer_fingerprint = data::tokenizer_fingerprint(data.tokenizer_path);
  return options;
}

}  // namespace

std::vector<data::SourceOptions> training_data(const config::JobConfig& config) {
  const data::TextField field = {config.training.text_field, kTrainingKeys.field};
  if (!config.training.sources.empty())
    return listed_data("training.sources", config.training.sources, field);
  return {{.name = "",
           .path = files_of("training", config.training.dataset, config.training.dataset_path,
                            config::uses_default_corpus(config), kTrainingCorpus),
           .key = kTrainingKeys.path,
           .text_field = field}};
}

std::vector<data::SourceOptions> validation_data(const config::JobConfig& config, const DataKeys& keys) {
  const data::TextField field = validation_field(config, keys);
  if (!config.validation.sources.empty())
    return listed_data("validation.sources", config.validation.sources, field);
  return {{.name = "",
           .path = files_of("validation", config.validation.dataset, config.validation.dataset_path,
                            config::validates_on_default_corpus(config), kHeldOutCorpus),
           .key = keys.path,
           .text_field = field}};
}

DataSetup load_tokenizer(const config::JobConfig& config) {
  const fs::path path = config::resolve_input(config.model.hf_assets_path, config::install_root());
  DataSetup data{data::Tokenizer::load(path), path.string()};
  data::warn_of_missing_tokens(*data.tokenizer, path);
  return data;
}

void check_training_documents(const config::JobConfig& config) {
  for (const data::SourceOptions& source : training_data(config)) {
    if (config::uses_default_corpus(config))
      log_info("training.dataset = \"{}\" without dataset_path: reading the default corpus {}",
               text_of(config.training.dataset), source.path);
    data::check_text_field(source, skips_bad_documents(config));
  }
}

void check_validation_documents(const config::JobConfig& config, const DataKeys& keys) {
  if (!config.validation.enable) return;
  for (const data::SourceOptions& source : validation_data(config, keys)) {
    if (config::validates_on_default_corpus(config))
      log_info("validation.dataset = \"{}\" without dataset_path: reading the default corpus {}",
               text_of(config.validation.dataset), source.path);
    data::check_text_field(source, skips_bad_documents(config));
  }
}

std::string describe_training_data(const config::JobConfig& config) {
  std::string text;
  for (const data::SourceOptions& source : training_data(config)) {
    const std::string path = fs::absolute(source.path).lexically_normal().string(),
                      &field = source.text_field.name;
    text += (text.empty() ? "" : "; ") + (source.name.empty() ? "" : source.name + ": ") + path +
            (field == "text" ? "" : fmt::format(", field \"{}\"", field));
  }
  return text;
}

std::unique_ptr<data::DataLoader> training_loader(const config::JobConfig& config, const DataSetup& data,
                                                  const LoaderContext& context, Coordinator* ranks) {
  const auto& training = config.training;
  data::LoaderOptions options = loader_options(data, context);
  options.seq_len = training.seq_len;
  options.rows = training.local_batch_size;
  options.order = {.seed = context.seed,
                   .shuffle = training.shuffle,
                   .repeat = true,
                   .window = static_cast<uint64_t>(training.shuffle_window),
                   .skips_bad_documents = skips_bad_documents(config)};
  options.document_mask = training.document_mask;
  options.stops_at_source_end = training.on_source_end == config::OnSourceEnd::kStop;
  options.sources = training_data(config);
  if (ranks != nullptr)
    for (data::SourceOptions& source : options.sources) source.node = data::NodeDocuments::make(*ranks);
  return std::make_unique<data::DataLoader>(std::move(options));
}

std::vector<ValidationLoader> validation_loaders(const config::JobConfig& config, const DataSetup& data,
                                                 const LoaderContext& context, const DataKeys& keys) {
  const auto& validation = config.validation;
  std::vector<ValidationLoader> loaders;
  for (data::SourceOptions& source : validation_data(config, keys)) {
    const std::string name = std::exchange(source.name, "");
    data::LoaderOptions options = loader_options(data, context);
    options.sources = {std::move(source)};
    options.seq_len = validation.seq_len;
    options.rows = validation.local_batch_size;
    options.order = {.seed = 0,
                     .shuffle = false,
                     .repeat = validation.steps > 0,
                     .skips_bad_documents = skips_bad_documents(config)};
    options.document_mask = config.training.document_mask;
    loaders.push_back({name, std::make_unique<data::DataLoader>(std::move(options))});
  }
  return loaders;
}

}  // namespace hyperion::trainer
