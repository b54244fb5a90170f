#include "trainer/hugging_face/config_keys.h"

#include <algorithm>
#include <iterator>
#include <span>

#include <fmt/ranges.h>

#include "base/json.h"

namespace hyperion::hugging_face {
namespace {

using nlohmann::json;

struct KeyOfTypes {
  std::string_view model_types, key;
};
struct RefusedKey {
  std::string_view key, allowed;  // a list in JSON
};

constexpr KeyOfTypes kReadKeys[] = {
#define READ(model_types, key) {model_types, #key},
#define ONLY(key, values)
#define NO_EFFECT(model_types, key)
#include "trainer/hugging_face/config_keys.def"
};
constexpr RefusedKey kRefusedKeys[] = {
#define READ(model_types, key)
#define ONLY(key, values) {#key, values},
#define NO_EFFECT(model_types, key)
#include "trainer/hugging_face/config_keys.def"
};
constexpr KeyOfTypes kKeysWithoutEffect[] = {
#define READ(model_types, key)
#define ONLY(key, values)
#define NO_EFFECT(model_types, key) {model_types, #key},
#include "trainer/hugging_face/config_keys.def"
};

bool has_key(std::span<const KeyOfTypes> keys, std::string_view key, std::string_view model_type) {
  return std::ranges::any_of(keys, [&](const KeyOfTypes& known) {
    return known.key == key &&
           (known.model_types == "*" ||
            fmt::format(" {} ", known.model_types).find(fmt::format(" {} ", model_type)) !=
                std::string::npos);
  });
}

void require_allowed(const JsonNode& config, const std::string& key, std::string_view allowed) {
  const json& value = config.object()[key];
  const json values = json::parse(allowed);
  if (std::ranges::count(values, value) > 0) return;
  std::vector<std::string> texts;
  for (const json& one : values) texts.push_back(one.dump());
  texts.emplace_back("null");
  config[key].refuse(fmt::format("{} (it would change what the model computes, and is not computed here)",
                                 fmt::join(texts, " or ")));
}

}  // namespace

std::vector<std::string> check_config_keys(const JsonNode& config, std::string_view model_type) {
  // Qwen's files have it: the width of sliding windows that are switched off.
  const bool without_windows = config.object().value("use_sliding_window", json()) == false;
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.object().items()) {
    if (has_key(kReadKeys, key, model_type) || has_key(kKeysWithoutEffect, key, model_type)) continue;
    if (value.is_null() || key.starts_with('_') || key.ends_with("_token_id") ||
        key.ends_with("_token_ids") || (key == "sliding_window" && without_windows))
      continue;
    const auto refused = std::ranges::find(kRefusedKeys, key, &RefusedKey::key);
    if (refused == std::end(kRefusedKeys))
      unknown.push_back(key);
    else
      require_allowed(config, key, refused->allowed);
  }
  return unknown;
}

}  // namespace hyperion::hugging_face
