#include "trainer/config/schema.h"

#include <algorithm>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"

namespace hyperion::config {
namespace {

using Config = const JobConfig&;

bool has_converter(Config config, Converter converter) {
  return std::ranges::count(config.model.converters, converter) > 0;
}

bool has_experts(Config config) {
  try {
    return model_args(config.model, /*any_dimensions=*/true).experts.are_present();
  } catch (const Error&) {
    return false;  // an unknown family or flavour, which is refused for itself
  }
}

// These overloads read and write members of JobConfig as TOML values. The C++ type is an alternative of
// Value, an enumeration (as the text of its value), a list of one, or std::optional of any of these.

template <typename T>
Value read_member(const T& member) {
  return member;
}
template <EnumWithTexts E>
Value read_member(const E& member) {
  return std::string(text_of(member));
}
template <EnumWithTexts E>
Value read_member(const std::vector<E>& member) {
  std::vector<std::string> texts;
  for (const E value : member) texts.emplace_back(text_of(value));
  return texts;
}
template <typename T>
Value read_member(const std::optional<T>& member) {
  return member ? read_member(*member) : Value();
}

// Returns false and leaves `member` unchanged if the value has another type.
template <typename T>
bool assign_member(const Value& value, T& member) {
  const T* same = std::get_if<T>(&value);
  if (same != nullptr) member = *same;
  return same != nullptr;
}
bool assign_member(const Value& value, double& member) {
  const auto* whole = std::get_if<int64_t>(&value);  // a whole number is a number too
  return assign_member<double>(whole != nullptr ? Value(static_cast<double>(*whole)) : value, member);
}
template <EnumWithTexts E>
bool assign_member(const Value& value, E& member) {
  const auto* text = std::get_if<std::string>(&value);
  const std::optional<E> chosen = text != nullptr ? choice_of<E>(*text) : std::nullopt;
  member = chosen.value_or(member);
  return chosen.has_value();
}
template <EnumWithTexts E>
bool assign_member(const Value& value, std::vector<E>& member) {
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  if (texts == nullptr) return false;
  std::vector<E> chosen(texts->size());
  for (size_t i = 0; i < chosen.size(); ++i)
    if (!assign_member(Value((*texts)[i]), chosen[i])) return false;
  member = std::move(chosen);
  return true;
}
template <typename T>
bool assign_member(const Value& value, std::optional<T>& member) {
  if (std::holds_alternative<std::monostate>(value)) return member.reset(), true;
  T held{};
  if (!assign_member(value, held)) return false;
  member = std::move(held);
  return true;
}

template <typename T>
T value_when_set(const T&);
template <typename T>
T value_when_set(const std::optional<T>&);

template <typename T>
const MemberType& member_type() {
  using Set = decltype(value_when_set(T{}));
  std::vector<std::string> choices;
  if constexpr (EnumWithTexts<Set>)
    choices = texts_of<Set>();
  else if constexpr (requires { requires EnumWithTexts<typename Set::value_type>; })
    choices = texts_of<typename Set::value_type>();
  static const MemberType type = {
      Kind{static_cast<int>(read_member(Set{}).index()) - 1}, !std::is_same_v<T, Set>, choices,
      [](const void* member) { return read_member(*static_cast<const T*>(member)); },
      [](const Value& value, void* member) { return assign_member(value, *static_cast<T*>(member)); }};
  return type;
}

constexpr double kMaxRanks = 1'000'000;  // keeps products of degrees and batches inside 64 bits
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

// Describes a key of one table of a list; `table` is the one whose members' places in memory are measured.
template <typename Table, typename T>
Option table_key(std::string_view list, const char* key, const Table& table, const T& member,
                 const char* meaning) {
  Option option;
  option.name = std::string(list) + "." + key;
  option.type = &member_type<T>();
  option.offset = static_cast<size_t>(reinterpret_cast<const std::byte*>(&member) -
                                      reinterpret_cast<const std::byte*>(&table));
  option.meaning = meaning;
  option.in_torchtitan = false;
  return option;
}

TableKeys build_source_keys(std::string_view list, bool of_training) {
  static const DataSource source;
  std::vector<Option> keys;
#define SOURCE_KEY(type, key, value, meaning, ...) \
  keys.push_back(table_key(list, #key, source, source.key, meaning) __VA_ARGS__);
#define TRAINING_SOURCE_KEY(...) \
  if (of_training) {             \
    SOURCE_KEY(__VA_ARGS__)      \
  }
#include "trainer/config/sources.def"
  return {std::move(keys), &source};
}

TableKeys build_group_keys() {
  static const ParameterGroup group;
  std::vector<Option> keys;
#define GROUP_KEY(type, key, value, meaning, ...) \
  keys.push_back(table_key("optimizer.groups", #key, group, group.key, meaning) __VA_ARGS__);
#include "trainer/config/groups.def"
  return {std::move(keys), &group};
}

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
#define OVERRIDE(type, key, member, part, resume, meaning, ...) \
  builder.add(#key, table.key, meaning) __VA_ARGS__;
#define END_OVERRIDES() END(args)
#define END(member) \
  builder.end();    \
  }
#include "trainer/config/options.def"
  return builder.take();
}

}  // namespace

#define FEATURE(name, key, condition, on, refusal) \
  const Feature name = {key, condition, [](Config c) { return on; }, refusal};
#include "trainer/config/features.def"

const std::vector<const Feature*>& features() {
  static const std::vector<const Feature*> all = {
#define FEATURE(name, ...) &name,
#include "trainer/config/features.def"
  };
  return all;
}

const TableKeys& source_keys(std::string_view list) {
  static const TableKeys training = build_source_keys("training.sources", /*of_training=*/true),
                         validation = build_source_keys("validation.sources", /*of_training=*/false);
  return list == "training.sources" ? training : validation;
}

const TableKeys& group_keys() {
  static const TableKeys keys = build_group_keys();
  return keys;
}

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
