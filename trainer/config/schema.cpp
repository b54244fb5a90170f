#include "trainer/config/schema.h"

#include <algorithm>
#include <unordered_map>

#include "trainer/config/features.h"
#include "trainer/config/member_type.h"

namespace hyperion::config {
namespace {

constexpr double kMostRanks = 1'000'000;  // keeps products of degrees and batches inside 64 bits
constexpr double kLargestSize = 1'000'000'000;

// Fills the schema while options.def is read from top to bottom.
class SchemaBuilder {
 public:
  // The keys up to end() belong to the table `name`; `common`: what holds for each of them.
  void begin(const char* name, const char* meaning, const Option& common = {}) {
    path_.push_back(path_.empty() ? name : path_.back() + "." + name);
    if (meaning != nullptr) sections_.push_back({path_.back(), meaning, {}});
    common_ = common;
  }
  void end() { path_.pop_back(); }

  // Modifiers of the option that is returned take effect in the schema.
  template <typename T>
  Option& add(const char* key, const T& member, const char* meaning) {
    Option option = common_;
    option.name = path_.back() + "." + key;
    option.type = &member_type<T>();
    option.offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(&member) -
                                        reinterpret_cast<const std::byte*>(&config_));
    option.meaning = meaning;
    option.choices = option.type->choices;
    return sections_.back().options.emplace_back(std::move(option));
  }

  const JobConfig& config() const { return config_; }
  std::vector<Section> take() { return std::move(sections_); }

 private:
  JobConfig config_;  // whose members' places in memory are measured
  std::vector<Section> sections_;
  std::vector<std::string> path_;
  Option common_;
};

std::vector<Section> build() {
  SchemaBuilder builder;
  const JobConfig& table = builder.config();
#define GROUP(Type, member)           \
  {                                   \
    const auto& outer = table;        \
    const auto& table = outer.member; \
    builder.begin(#member, nullptr);
#define TABLE(Type, member, meaning, ...) \
  {                                       \
    const auto& outer = table;            \
    const auto& table = outer.member;     \
    builder.begin(#member, meaning, Option() __VA_ARGS__);
#define OVERRIDES(...) TABLE(__VA_ARGS__)
#define OPTION(type, key, value, meaning, ...) builder.add(#key, table.key, meaning) __VA_ARGS__;
#define OVERRIDE(type, key, meaning, ...) builder.add(#key, table.key, meaning) __VA_ARGS__;
#define END_OVERRIDES() END(args)
#define END(member) \
  builder.end();    \
  }
#include "trainer/config/options.def"
  return builder.take();
}

}  // namespace

const std::vector<Section>& schema() {
  static const std::vector<Section> sections = build();
  return sections;
}

const std::vector<std::reference_wrapper<const Option>>& all_options() {
  static const auto options = [] {
    std::vector<std::reference_wrapper<const Option>> all;
    for (const Section& section : schema())
      all.insert(all.end(), section.options.begin(), section.options.end());
    return all;
  }();
  return options;
}

const Option* find_option(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const Option*> map;
    for (const Option& option : all_options()) map[option.name] = &option;
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

bool is_section(std::string_view name) {
  return std::any_of(schema().begin(), schema().end(), [&](const Section& section) {
    return section.name.starts_with(name) &&
           (section.name.size() == name.size() || section.name[name.size()] == '.');
  });
}

std::string status_text(const Option& option) {
  if (option.python_only) return "no effect here";
  return option.feature != nullptr && !option.feature->refusal.empty() ? "not available" : "works";
}

}  // namespace hyperion::config
