#include "trainer/hugging_face/config_keys.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include <fmt/ranges.h>

#include "trainer/hugging_face/config_values.h"

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
#include "trainer/hugging_face/config_keys.def"
};
constexpr RefusedKey kRefusedKeys[] = {
#define ONLY(key, values) {#key, values},
#include "trainer/hugging_face/config_keys.def"
};
constexpr KeyOfTypes kKeysWithoutEffect[] = {
#define NO_EFFECT(model_types, key) {model_types, #key},
#include "trainer/hugging_face/config_keys.def"
};

bool includes(std::string_view model_types, std::string_view model_type) {
  return model_types == "*" ||
         fmt::format(" {} ", model_types).find(fmt::format(" {} ", model_type)) != std::string::npos;
}

bool has_key(std::span<const KeyOfTypes> keys, std::string_view key, std::string_view model_type) {
  return std::ranges::any_of(keys, [&](const KeyOfTypes& known) {
    return known.key == key && includes(known.model_types, model_type);
  });
}

// hidden_act of config.json.
constexpr std::pair<models::Activation, std::string_view> kHiddenActs[] = {
#define ACTIVATION(name, text, hidden_act) {models::Activation::k##name, hidden_act},
#include "models/args/activations.def"
};

void read_value(const JsonNode& node, std::optional<int64_t> otherwise, int64_t& value) {
  value = size_in(node, otherwise);
}
void read_value(const JsonNode& node, double otherwise, double& value) {
  value = number_in(node, otherwise);
}
void read_value(const JsonNode& node, bool otherwise, bool& value) {
  value = node.flag(otherwise);
}
void read_value(const JsonNode& node, models::Activation otherwise, models::Activation& value) {
  value = otherwise;
  if (node.is_null()) return;
  std::vector<std::string_view> known;
  for (const auto& [activation, name] : kHiddenActs) {
    value = activation;
    if (node.text() == name) return;
    known.push_back(name);
  }
  node.refuse(fmt::format("\"{}\", the activations computed here", fmt::join(known, "\" or \"")));
}

template <typename T>
json json_of(const T& value) {
  return value;
}
json json_of(models::Activation value) {
  return std::ranges::find(kHiddenActs, value, [](const auto& one) { return one.first; })->second;
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

void read_fields(const JsonNode& config, std::string_view model_type, models::ModelArgs& args) {
#define FIELD(model_types, key, member, otherwise) \
  if (includes(model_types, model_type)) read_value(config[#key], otherwise, args.member);
#include "trainer/hugging_face/config_keys.def"
}

void write_fields(const models::ModelArgs& args, std::string_view model_type, json& config) {
#define FIELD(model_types, key, member, ...) \
  if (includes(model_types, model_type)) config[#key] = json_of(args.member);
#include "trainer/hugging_face/config_keys.def"
}

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
