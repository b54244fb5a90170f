// What the folder of a Hugging Face model says beyond what this program computes with: kept from the import
// through checkpoints to the export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::hugging_face {

// Each is the text of one JSON object, without blanks; "": the model was not imported, or has no such file.
struct ImportedSettings {
  std::string config;      // config.json
  std::string generation;  // generation_config.json
  bool operator==(const ImportedSettings&) const = default;
};

// The most bytes of either file, because they are in every checkpoint.
constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// `text` without its blanks. Throws Error(kBadData), naming `name`, unless it is a JSON object of at most
// kMaxSettingsBytes whose bos_token_id and eos_token_id are ids, lists of ids or null.
std::string checked_settings(std::string_view text, const std::string& name);
// Of the files in `folder` that are there. Throws Error(kBadData), as
// checked_settings() and read_file() do.
ImportedSettings read_imported_settings(const std::filesystem::path& folder);

// `settings` without any id of a token, for a model whose tokenizer is another than theirs: neither
// generation_config.json nor the fields of config.json that end in "token_id".
ImportedSettings for_other_tokenizer(const ImportedSettings& settings);
// `settings` without the fields of ids that are not below `vocab_size`: transformers refuses a model with
// such a pad_token_id. Their names, once each, are added to `left_out`.
ImportedSettings within_vocabulary(const ImportedSettings& settings, int64_t vocab_size,
                                   std::vector<std::string>& left_out);

// The ids that `key` ("eos_token_id") has in generation_config.json, else in config.json; none when neither
// has it.
std::vector<int64_t> imported_ids(const ImportedSettings& settings, const std::string& key);
// max_position_embeddings of config.json, where it is a number of positions.
std::optional<int64_t> imported_positions(const ImportedSettings& settings);

}  // namespace hyperion::hugging_face
