// What a checkpoint says about the job that made its weights, whatever part of the state it holds: the
// model's configuration, the tokenizer and the data. Every save of ours has it in hyperion.json; an export
// for Hugging Face has config.json, generation_config.json and the tokenizer's files instead, and the
// tokenizer's hash in its safetensors.
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
  std::string path;      // where it was
  std::string hash;      // Tokenizer::hash(); "" when the checkpoint does not say
  bool recorded = true;  // false: it is in the folder of weights that do not say what they were trained with
};

struct JobRecord {
  std::optional<config::JobConfig::Model> model;
  TokenizerRecord tokenizer;
  std::string data{};  // where the documents were, for messages
  hugging_face::ImportedSettings
      imported{};       // of the Hugging Face model that its weights, or its shape, began with
  int64_t seq_len = 0;  // training.seq_len; 0: not known
};

// Leaves the ids of tokens out of record.imported, with a line that says so, where it was imported with
// another tokenizer than the record's. `hash`: of that one; "": not known, and they stay.
void keep_ids_of_one_tokenizer(JobRecord& record, const std::string& hash);

// Lines for a manifest's facts, and back. read_record() finds the tokenizer of a folder of safetensors in its
// notes, or else next to the weights, as what is imported. Throws Error for what cannot be read.
std::map<std::string, std::string> record_facts(const JobRecord& record);
JobRecord read_record(const checkpoint::OpenCheckpoint& checkpoint);

// The record's model, or the one in train_state.config of checkpoints that have no record of it; nothing for
// other programs' checkpoints.
std::optional<config::JobConfig::Model> saved_model(const checkpoint::OpenCheckpoint& checkpoint);

// The note that an export for Hugging Face carries in its safetensors: see plan_safetensors.
std::map<std::string, std::string> tokenizer_note(const std::string& hash);

// The tokenizer that text of this job or command goes through.
struct TokenizerChoice {
  std::string path, hash;
  std::string chosen_by;  // "model.hf_assets_path (job.toml:3:1)", "--tokenizer"
  // How another one is chosen: "start with --model.hf_assets_path=PATH", "name --tokenizer PATH".
  std::function<std::string(const std::string& path)> choose;
  std::string allow;         // how this one is allowed all the same
  std::string allowed_by{};  // the option that allows it; "": it is not allowed
};

// Weights of `checkpoint` meet text. Throws Error(kUsage) with both tokenizers and the ways out when they
// differ; logs one line when that is allowed, or when the checkpoint does not say. True when they differ.
bool require_same_tokenizer(const std::filesystem::path& checkpoint, const TokenizerRecord& stored,
                            const TokenizerChoice& chosen);

// A table as a checkpoint stores it: a dict of texts. `where` is for the message of Error(kBadData).
checkpoint::Object to_object(const config::TextTable& table);
config::TextTable text_table(const checkpoint::Object& object, const std::string& where);

}  // namespace hyperion::checkpointing
