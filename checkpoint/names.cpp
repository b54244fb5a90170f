#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/names.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/collective.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "checkpoint/state.h"

namespace hyperion::checkpoint {
namespace {

// Segments that wrappers insert and models do not use.
constexpr std::array<std::string_view, 4> kWrappers = {"_orig_mod", "_checkpoint_wrapped_module",
                                                       "_fsdp_wrapped_module", "module"};
// Components whose keys contain a parameter's name, and whether another segment follows it.
struct ParameterPrefix {
  std::string_view prefix;
  bool has_suffix;
};
constexpr std::array<ParameterPrefix, 3> kParameterPrefixes = {
    {{kMomentsPrefix, true}, {kParameterGroupPrefix, true}, {kEmaPrefix, false}}};

constexpr size_t kMaxShown = 20;  // maximum names shown of each kind
constexpr size_t kMaxPattern = 4096;
constexpr size_t kMaxName = 65536;
constexpr uint32_t kMatchLimit = 1'000'000;  // steps of the matcher for one name

// A key as prefix + parameter name + suffix; a parameter name is empty for keys that hold none.
struct KeyParts {
  std::string_view prefix, name, suffix;
};

KeyParts split_key(std::string_view key) {
  for (const ParameterPrefix& known : kParameterPrefixes) {
    if (!key.starts_with(known.prefix)) continue;
    std::string_view name = key.substr(known.prefix.size()), suffix;
    if (known.has_suffix) {
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos) return {key, {}, {}};
      suffix = name.substr(dot);
      name = name.substr(0, dot);
    }
    return {known.prefix, name, suffix};
  }
  if (component_of(std::string(key)) != kModelComponent) return {key, {}, {}};
  return {{}, key, {}};
}

std::string join_key(const KeyParts& parts, std::string_view name) {
  return std::string(parts.prefix).append(name).append(parts.suffix);
}

std::string without_wrappers(std::string_view name) {
  std::string result;
  for (std::string_view rest = name; !rest.empty();) {
    const size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view segment = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (std::find(kWrappers.begin(), kWrappers.end(), segment) != kWrappers.end()) continue;
    if (!result.empty()) result += '.';
    result += segment;
  }
  return result.empty() ? std::string(name) : result;
}

std::string pcre2_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <typename Items, typename Line>
std::string list_lines(const char* what, const Items& items, Line line) {
  if (items.empty()) return "";
  std::string text = fmt::format("\n  {} {}:", items.size(), what);
  for (size_t i = 0; i < std::min(items.size(), kMaxShown); ++i) text += "\n    " + line(items[i]);
  if (items.size() > kMaxShown) text += fmt::format("\n    and {} more", items.size() - kMaxShown);
  return text;
}

}  // namespace

std::string canonical_name(std::string_view key) {
  const KeyParts parts = split_key(key);
  return parts.name.empty() ? std::string(key) : join_key(parts, without_wrappers(parts.name));
}

struct NameMap::Rule {
  std::string pattern, replacement;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, &pcre2_code_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{
      pcre2_match_context_create(nullptr), &pcre2_match_context_free};
};

NameMap::NameMap(const RenameTable& table) {
  for (const auto& [pattern, replacement] : table) {
    if (pattern.size() > kMaxPattern || replacement.size() > kMaxPattern)
      throw_config("checkpoint.rename: \"{}\": expected a name of at most {} bytes", printable(pattern),
                   kMaxPattern);
    auto rule = std::make_shared<Rule>();
    rule->pattern = pattern;
    rule->replacement = replacement;
    int error = 0;
    PCRE2_SIZE offset = 0;
    rule->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &error,
                                   &offset, nullptr));
    if (!rule->code)
      throw_config("checkpoint.rename: \"{}\" is not a regular expression: {} at character {}",
                   printable(pattern), pcre2_text(error), offset);
    pcre2_set_match_limit(rule->context.get(), kMatchLimit);
    pcre2_set_depth_limit(rule->context.get(), kMatchLimit / 100);
    pcre2_set_heap_limit(rule->context.get(), 64 * 1024);  // KiB
    rules_.push_back(std::move(rule));
    rename_parameter("");  // detects an unusable replacement now
  }
}

std::optional<std::string> NameMap::rename_parameter(const std::string& name) const {
  for (const auto& rule : rules_) {
    std::string result(name.size() * 2 + rule->replacement.size() * 2 + 64, '\0');
    PCRE2_SIZE length = result.size();
    const int count =
        pcre2_substitute(rule->code.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                         nullptr, rule->context.get(), reinterpret_cast<PCRE2_SPTR>(rule->replacement.data()),
                         rule->replacement.size(), reinterpret_cast<PCRE2_UCHAR*>(result.data()), &length);
    if (count == 0) continue;
    if (count < 0)
      throw_config("checkpoint.rename: \"{}\" -> \"{}\" cannot be applied to {}: {}",
                   printable(rule->pattern), printable(rule->replacement), printable(name),
                   pcre2_text(count));
    result.resize(length);
    return result;
  }
  return std::nullopt;
}

std::string NameMap::apply(const std::string& key) const {
  std::string name = canonical_name(key);
  if (rules_.empty() || name.size() > kMaxName) return name;
  const KeyParts parts = split_key(name);
  if (parts.name.empty()) return name;
  const std::optional<std::string> changed = rename_parameter(std::string(parts.name));
  return changed ? join_key(parts, *changed) : name;
}

std::map<std::string, std::string> NameMap::apply(const std::vector<std::string>& keys) const {
  const uint64_t before = trace_names("reading the checkpoint", keys);
  std::map<std::string, std::string> mapped;
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    const auto [place, added] = mapped.emplace(apply(key), key);
    if (!added)
      throw_incompatible(
          "the checkpoint's keys {} and {} both become {}: change checkpoint.rename so that they stay "
          "apart",
          printable(place->second), printable(key), printable(place->first));
    names.push_back(place->first);
  }
  trace_names("wrapper segments and checkpoint.rename", names, before);
  return mapped;
}

uint64_t names_hash(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  uint64_t hash = names.size();
  for (const std::string& name : names) hash = hash_text(name, hash);
  return hash;
}

uint64_t trace_names(std::string_view stage, const std::vector<std::string>& names,
                     std::optional<uint64_t> expected) {
  const uint64_t hash = names_hash(names);
  spdlog::debug("names after {}: {}, hash {:016x}{}", stage, names.size(), hash,
                expected && *expected != hash ? fmt::format(", CHANGED from {:016x}", *expected) : "");
  for (const std::string& name : names) spdlog::debug("  {}", printable(name));
  return hash;
}

NameDifferences compare_names(std::vector<std::string> wanted, std::vector<std::string> found) {
  std::sort(wanted.begin(), wanted.end());
  std::sort(found.begin(), found.end());
  NameDifferences differences;
  std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(),
                      std::back_inserter(differences.missing));
  std::set_difference(found.begin(), found.end(), wanted.begin(), wanted.end(),
                      std::back_inserter(differences.unexpected));
  return differences;
}

std::string explain_differences(const std::string& where, const NameDifferences& differences,
                                std::string_view subject, std::string_view advice) {
  if (differences.empty()) return "";
  std::string text = fmt::format("{} does not fit {}:", where, subject);
  text += list_lines("missing", differences.missing, [&](const std::string& name) {
    const std::string nearest = nearest_name(name, differences.unexpected);
    return printable(name) + (nearest.empty() ? "" : fmt::format(" (nearest there: {})", printable(nearest)));
  });
  text += list_lines("unexpected", differences.unexpected,
                     [](const std::string& name) { return printable(name); });
  text += list_lines("mismatched", differences.mismatched, [](const Mismatch& mismatch) {
    return fmt::format("{}: expected {}, found {}", printable(mismatch.name), mismatch.wanted,
                       mismatch.found);
  });
  if (!advice.empty()) text.append("\n  ").append(advice);
  return text;
}

}  // namespace hyperion::checkpoint
