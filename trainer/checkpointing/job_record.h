// A job record says which model configuration, tokenizer and data made the weights of a checkpoint. Every
// save of ours has it in hyperion.json. A Hugging Face export has config.json, generation_config.json and the
// tokenizer's files instead, and the tokenizer's hash in its safetensors.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/loader.h"
#include "trainer/config/job_config.h"
#include "trainer/hugging_face/imported_settings.h"

namespace hyperion::checkpointing {

struct TokenizerRecord {
  std::string path;      // as the job named it
  std::string hash;      // Tokenizer::hash(); "" if unknown
  bool recorded = true;  // false: found next to weights that do not record their tokenizer
};

struct JobRecord {
  std::optional<config::JobConfig::Model> model;
  TokenizerRecord tokenizer;
  std::string data{};                         // path of the documents, for messages
  hugging_face::ImportedSettings imported{};  // from the Hugging Face model
  int64_t seq_len = 0;                        // training.seq_len; 0 if unknown
  int64_t data_parallel_ranks = 0;            // of the job that began with the batch; 0 if unknown
  int64_t global_batch_tokens = 0;            // of a step; informative; 0 if unknown
};

// Removes token ids from record.imported, and logs that, if the import used a tokenizer other than the
// record's. `hash` is the hash of the import's tokenizer; if it is "" (unknown), the ids stay.
void keep_ids_of_one_tokenizer(JobRecord& record, const std::string& hash);

// Convert the record to a manifest's facts and back. For a folder of safetensors read_record() takes the
// tokenizer from the notes, or else from the files next to the weights, where it finds the imported settings
// too. Throws Error if a file cannot be read.
std::map<std::string, std::string> record_facts(const JobRecord& record);
JobRecord read_record(const checkpoint::OpenCheckpoint& checkpoint);

// Returns the record's model, else the model in train_state.config; nullopt for other programs' checkpoints.
std::optional<config::JobConfig::Model> saved_model(const checkpoint::OpenCheckpoint& checkpoint);

// Returns the tokenizer's note in the safetensors of a Hugging Face export (plan_safetensors).
std::map<std::string, std::string> tokenizer_note(const std::string& hash);

// The tokenizer that this job or command uses.
struct TokenizerChoice {
  std::string path, hash;
  std::string chosen_by;  // "model.hf_assets_path (job.toml:3:1)", "--tokenizer"
  // Returns the remedy that chooses another tokenizer: "start with --model.hf_assets_path=PATH", "name
  // --tokenizer PATH".
  std::function<std::string(const std::string& path)> choose;
  std::string allow;         // the remedy that allows this one
  std::string allowed_by{};  // the option that has allowed it; "" if none has
};

// Compares the tokenizer of `checkpoint` with the chosen one. Throws Error(kUsage), with both and the
// remedies, if they differ. Logs one line instead if that is allowed, or if the checkpoint does not record
// its tokenizer. Returns true if they differ.
bool require_same_tokenizer(const std::filesystem::path& checkpoint, const TokenizerRecord& stored,
                            const TokenizerChoice& chosen);

// Convert a table to the dict of texts that a checkpoint stores, and back. `where` is named in the message of
// Error(kBadData).
checkpoint::Object to_object(const config::TextTable& table);
config::TextTable text_table(const checkpoint::Object& object, const std::string& where);

}  // namespace hyperion::checkpointing
