#include "trainer/hugging_face/imported_settings.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"

namespace hyperion::hugging_face {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

bool is_ids(const json& value) {
  const auto is_id = [](const json& one) { return one.is_number_integer(); };
  return value.is_null() || is_id(value) || (value.is_array() && std::ranges::all_of(value, is_id));
}

// Returns `text` without the "...token_id" fields that hold an id to be removed; adds their names to
// `erased`.
template <typename IsToGo>
std::string erase_ids(const std::string& text, const IsToGo& is_to_go, std::vector<std::string>* erased) {
  if (text.empty()) return text;
  json settings = json::parse(text);
  for (auto field = settings.begin(); field != settings.end();) {
    const std::string& key = field.key();
    const bool goes = key.ends_with("token_id") &&
                      (field->is_array() ? std::ranges::any_of(*field, is_to_go) : is_to_go(*field));
    if (goes && erased != nullptr && std::ranges::count(*erased, key) == 0) erased->push_back(key);
    field = goes ? settings.erase(field) : std::next(field);
  }
  return settings.dump();
}

std::string read_settings(const fs::path& file) {
  return name_exists(file) ? checked_settings(read_file(file, kMaxSettingsBytes), file.string()) : "";
}

}  // namespace

std::string checked_settings(std::string_view text, const std::string& name) {
  const auto require_size = [&](std::string_view bytes) {
    if (bytes.size() > kMaxSettingsBytes)
      throw_data("{}: has {} bytes, expected at most {}", name, bytes.size(), kMaxSettingsBytes);
  };
  require_size(text);
  const json values = parse_json(text, name);
  const JsonNode settings(values, name);
  settings.object();
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (values.contains(key) && !is_ids(values[key])) settings[key].refuse("an id or a list of ids");
  std::string dense = values.dump();
  require_size(dense);  // 1e2 becomes 100.0
  return dense;
}

ImportedSettings read_imported_settings(const fs::path& folder) {
  return {read_settings(folder / "config.json"), read_settings(folder / "generation_config.json")};
}

ImportedSettings for_other_tokenizer(const ImportedSettings& settings) {
  const auto is_any = [](const json&) { return true; };
  return {erase_ids(settings.config, is_any, nullptr), ""};
}

ImportedSettings within_vocabulary(const ImportedSettings& settings, int64_t vocab_size,
                                   std::vector<std::string>& left_out) {
  const auto is_beyond = [&](const json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size);
  };
  return {erase_ids(settings.config, is_beyond, &left_out),
          erase_ids(settings.generation, is_beyond, &left_out)};
}

std::vector<int64_t> imported_ids(const ImportedSettings& settings, const std::string& key) {
  for (const std::string& text : {settings.generation, settings.config}) {
    if (text.empty()) continue;
    const json values = json::parse(text);
    const json ids = values.value(key, json());
    if (ids.is_array()) return ids.get<std::vector<int64_t>>();
    if (!ids.is_null()) return {ids.get<int64_t>()};
  }
  return {};
}

std::optional<int64_t> imported_positions(const ImportedSettings& settings) {
  if (settings.config.empty()) return std::nullopt;
  const json positions = json::parse(settings.config).value("max_position_embeddings", json());
  if (!positions.is_number_unsigned() || positions < 1 || positions > uint64_t{1} << 31) return std::nullopt;
  return positions.get<int64_t>();
}

}  // namespace hyperion::hugging_face
