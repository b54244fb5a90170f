#include "trainer/config/entries.h"

#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/hash.h"
#include "trainer/config/overrides.h"
#include "trainer/config/schema.h"

namespace hyperion {

TextTable config_entries(const JobConfig& config) {
  TextTable entries;
  for (const Option& option : all_options())
    entries.emplace_back(option.name, toml_text(read(option, config)));
  return entries;
}

uint64_t config_hash(const TextTable& entries) {
  uint64_t hash = entries.size();
  for (const auto& [key, text] : entries) hash = hash_text(text, hash_text(key, hash));
  return hash;
}

std::string config_comparison(const TextTable& stored, const TextTable& now) {
  if (stored == now)
    return fmt::format("the configuration is the checkpoint's (hash {:016x})", config_hash(now));
  const std::map<std::string, std::string> before(stored.begin(), stored.end()),
      after(now.begin(), now.end());
  std::vector<std::string> lines;
  for (const auto& [key, text] : after) {
    const auto old = before.find(key);
    if (old == before.end() || old->second != text)
      lines.push_back(
          fmt::format("{}: {} -> {}", key, old == before.end() ? "(new key)" : old->second, text));
  }
  for (const auto& [key, text] : before)
    if (!after.contains(key)) lines.push_back(fmt::format("{}: {} -> (no such key)", key, text));
  return fmt::format("the configuration differs from the checkpoint's in {}: {}",
                     counted(lines.size(), "key"), fmt::join(lines, ", "));
}

std::string model_options(const JobConfig::Model& saved, const JobConfig::Model& now) {
  // What a model is made of, not what is done to it and where its tokenizer is.
  const std::set<std::string> others = {"model.hf_assets_path", "model.tokenizer_path", "model.converters",
                                        "model.print_after_conversion"};
  JobConfig there, here;
  there.model = saved;
  here.model = now;
  std::vector<std::string> options;
  for (const Option& option : all_options()) {
    if (!option.name.starts_with("model.") || others.contains(option.name)) continue;
    const Value value = read(option, there);
    if (value != read(option, here)) options.push_back(override_text(option.name, command_line_text(value)));
  }
  return fmt::format("{}", fmt::join(options, " "));
}

}  // namespace hyperion
