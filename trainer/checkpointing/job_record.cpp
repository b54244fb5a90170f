#include "trainer/checkpointing/job_record.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/load.h"
#include "trainer/config/print.h"

namespace hyperion::checkpointing {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxEntries = 10'000, kMaxTextBytes = 65'536;  // of a table
constexpr const char *kModel = "model_config", *kTokenizerPath = "tokenizer_path",
                     *kTokenizerHash = "tokenizer_hash", *kData = "data", *kSeqLen = "seq_len",
                     *kRanks = "data_parallel_ranks", *kBatchTokens = "global_batch_tokens",
                     *kImportedConfig = "hugging_face_config",
                     *kImportedGeneration = "hugging_face_generation_config";

// Values are as TOML writes them.
std::string model_lines(const config::TextTable& entries) {
  std::string toml;
  for (const auto& [key, text] : entries)
    if (key.starts_with("model.") && text != "null") toml += fmt::format("{} = {}\n", key, text);
  return toml;
}

// Returns the hash of the tokenizer now at `path`; "" if none can be read.
std::string tokenizer_hash_at(const fs::path& path) {
  try {
    return path.empty() ? "" : data::Tokenizer::load(path)->hash();
  } catch (const Error&) {
    return "";
  }
}

std::string describe_tokenizer(const std::string& path, const std::string& hash) {
  return fmt::format("{} (hash {:.8})", path.empty() ? "a tokenizer" : printable(fs::path(path)), hash);
}

// Returns "" for a number that is not known.
std::string number_text(int64_t number) {
  return number > 0 ? std::to_string(number) : "";
}

}  // namespace

void keep_ids_of_one_tokenizer(JobRecord& record, const std::string& hash) {
  if (record.imported == hugging_face::ImportedSettings{} || hash.empty() || hash == record.tokenizer.hash)
    return;
  record.imported = hugging_face::for_other_tokenizer(record.imported);
  log_info(
      "The imported ids of tokens and generation_config.json are left out: they are of another tokenizer "
      "(hash {:.8}) than {}",
      hash, describe_tokenizer(record.tokenizer.path, record.tokenizer.hash));
}

std::map<std::string, std::string> record_facts(const JobRecord& record) {
  const TokenizerRecord& tokenizer = record.tokenizer;
  config::JobConfig config;
  config.model = record.model.value_or(config.model);
  std::map<std::string, std::string> facts = {
      {kModel, record.model ? model_lines(config::config_entries(config)) : ""},
      {kTokenizerPath, tokenizer.hash.empty() ? "" : tokenizer.path},
      {kTokenizerHash, tokenizer.hash},
      {kData, record.data},
      {kImportedConfig, record.imported.config},
      {kImportedGeneration, record.imported.generation},
      {kSeqLen, number_text(record.seq_len)},
      {kRanks, number_text(record.data_parallel_ranks)},
      {kBatchTokens, number_text(record.global_batch_tokens)}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

JobRecord read_record(const checkpoint::OpenCheckpoint& checkpoint) {
  JobRecord record;
  if (checkpoint.index.layout == checkpoint::CheckpointIndex::Layout::kBareBytes) {
    const auto note = checkpoint.index.notes.find(kTokenizerHash);
    record.tokenizer.recorded = note != checkpoint.index.notes.end();
    const fs::path folder =
        is_folder(checkpoint.folder) ? checkpoint.folder : checkpoint.folder.parent_path();
    record.tokenizer.path = fs::absolute(folder).lexically_normal().string();
    record.tokenizer.hash =
        record.tokenizer.recorded ? note->second : tokenizer_hash_at(record.tokenizer.path);
    record.imported = hugging_face::read_imported_settings(folder);
    return record;
  }
  if (!checkpoint.manifest) return record;
  const auto& facts = checkpoint.manifest->facts;
  const auto fact = [&](const char* key) {
    const auto found = facts.find(key);
    return found == facts.end() ? std::string() : found->second;
  };
  if (const std::string toml = fact(kModel); !toml.empty())
    record.model = config::parse_config(toml, checkpoint.folder.string(), {}).config.model;
  record.tokenizer = {fact(kTokenizerPath), fact(kTokenizerHash)};
  record.data = fact(kData);
  const auto settings = [&](const char* key) {
    const std::string text = fact(key);
    return text.empty() ? text
                        : hugging_face::checked_settings(
                              text, fmt::format("{}: fact {}", checkpoint.folder.string(), key));
  };
  record.imported = {settings(kImportedConfig), settings(kImportedGeneration)};
  const auto number = [&](const char* key) {
    return std::max<int64_t>(parse_number<int64_t>(fact(key)).value_or(0), 0);
  };
  record.seq_len = number(kSeqLen);
  record.data_parallel_ranks = number(kRanks);
  record.global_batch_tokens = number(kBatchTokens);
  return record;
}

std::optional<config::JobConfig::Model> saved_model(const checkpoint::OpenCheckpoint& checkpoint) {
  if (auto model = read_record(checkpoint).model) return model;
  const auto objects = checkpoint::load_objects(
      checkpoint, [](const std::string& key) { return key == checkpoint::kConfigKey; });
  if (objects.empty()) return std::nullopt;
  const config::TextTable entries = text_table(objects.begin()->second, checkpoint.folder.string());
  return config::parse_config(model_lines(entries), checkpoint.folder.string(), {}).config.model;
}

std::map<std::string, std::string> tokenizer_note(const std::string& hash) {
  return {{kTokenizerHash, hash}};
}

bool require_same_tokenizer(const fs::path& checkpoint, const TokenizerRecord& stored,
                            const TokenizerChoice& chosen) {
  if (stored.hash.empty()) {
    log_info("{} does not say which tokenizer its weights were trained with: {} could not be compared",
             checkpoint.string(), describe_tokenizer(chosen.path, chosen.hash));
    return false;
  }
  if (stored.hash == chosen.hash) return false;
  const std::string differ = fmt::format("{}: {}: {} there, {} here, chosen by {}", checkpoint.string(),
                                         stored.recorded ? "its weights were trained with another tokenizer"
                                                         : "its folder holds another tokenizer",
                                         describe_tokenizer(stored.path, stored.hash),
                                         describe_tokenizer(chosen.path, chosen.hash), chosen.chosen_by);
  if (!chosen.allowed_by.empty() || !stored.recorded) {
    log_warning("{}{}", differ, chosen.allowed_by.empty() ? "" : " and allowed by " + chosen.allowed_by);
    return true;
  }
  const bool there = tokenizer_hash_at(stored.path) == stored.hash;
  const std::string other =
      there ? chosen.choose(stored.path)
            : fmt::format(
                  "{}, a folder that holds the tokenizer of that hash{}", chosen.choose("FOLDER"),
                  stored.path.empty() ? "" : " (" + printable(fs::path(stored.path)) + " does not any more)");
  throw_config("{}. To use the one of the weights, {}; to use this one all the same, {}", differ, other,
               chosen.allow);
}

checkpoint::Object to_object(const config::TextTable& table) {
  checkpoint::Dict dict;
  for (const auto& [key, text] : table)
    dict.items.emplace_back(checkpoint::Object(key), checkpoint::Object(text));
  return dict;
}

config::TextTable text_table(const checkpoint::Object& object, const std::string& where) {
  const auto* dict = object.get_if<checkpoint::Dict>();
  if (dict == nullptr || dict->items.size() > kMaxEntries)
    throw_data("{}: expected a dict of at most {} texts, found {}", where, kMaxEntries,
               checkpoint::repr(object));
  config::TextTable table;
  for (const auto& [key, value] : dict->items) {
    const auto *name = key.get_if<std::string>(), *text = value.get_if<std::string>();
    if (name == nullptr || text == nullptr || name->size() + text->size() > kMaxTextBytes)
      throw_data("{}: expected texts, found {}: {}", where, checkpoint::repr(key), checkpoint::repr(value));
    table.emplace_back(*name, *text);
  }
  return table;
}

}  // namespace hyperion::checkpointing
