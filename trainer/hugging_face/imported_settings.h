// Imported settings are the parts of a Hugging Face model's folder that this program does not compute with.
// Checkpoints carry them from the import to the export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::hugging_face {

// Each member is the text of one JSON object without blanks; "" if the model was not imported or has no such
// file.
struct ImportedSettings {
  std::string config;      // config.json
  std::string generation;  // generation_config.json
  bool operator==(const ImportedSettings&) const = default;
};

// Limits the bytes of each file, because every checkpoint holds both.
constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// Returns `text` without blanks. Throws Error(kBadData), naming `name`, unless it is a JSON object of at most
// kMaxSettingsBytes whose bos_token_id and eos_token_id are ids, lists of ids or null.
std::string checked_settings(std::string_view text, const std::string& name);
// Reads the files that exist in `folder`. Throws Error(kBadData) as checked_settings() and read_file() do.
ImportedSettings read_imported_settings(const std::filesystem::path& folder);

// Returns `settings` without token ids, for a model with another tokenizer: without generation_config.json
// and without the fields of config.json that end in "token_id".
ImportedSettings for_other_tokenizer(const ImportedSettings& settings);
// Returns `settings` without fields whose ids are not below `vocab_size`: transformers refuses a model with
// such a pad_token_id. Adds the fields' names, once each, to `left_out`.
ImportedSettings within_vocabulary(const ImportedSettings& settings, int64_t vocab_size,
                                   std::vector<std::string>& left_out);

// Returns the ids of `key` ("eos_token_id") in generation_config.json, else in config.json; none if neither
// has it.
std::vector<int64_t> imported_ids(const ImportedSettings& settings, const std::string& key);
// Returns max_position_embeddings of config.json, if it is a valid number of positions.
std::optional<int64_t> imported_positions(const ImportedSettings& settings);

}  // namespace hyperion::hugging_face
