// How members of JobConfig are read and written as values of TOML, whatever their C++ type: a type that Value
// holds as it is, an enumeration (the text of its value), a list of one, or std::optional of any of these.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "trainer/config/option.h"

namespace hyperion::config {

template <typename T>
Value read_member(const T& member) {
  return member;
}
template <Chosen E>
Value read_member(const E& member) {
  return std::string(text_of(member));
}
template <Chosen E>
Value read_member(const std::vector<E>& member) {
  std::vector<std::string> texts;
  for (const E value : member) texts.emplace_back(text_of(value));
  return texts;
}
template <typename T>
Value read_member(const std::optional<T>& member) {
  return member ? read_member(*member) : Value();
}

// False, and `member` is unchanged, when the value is of another type.
template <typename T>
bool assign_member(const Value& value, T& member) {
  const T* same = std::get_if<T>(&value);
  if (same != nullptr) member = *same;
  return same != nullptr;
}
inline bool assign_member(const Value& value, double& member) {
  const auto* whole = std::get_if<int64_t>(&value);  // a whole number is a number too
  return assign_member<double>(whole != nullptr ? Value(static_cast<double>(*whole)) : value, member);
}
template <Chosen E>
bool assign_member(const Value& value, E& member) {
  const auto* text = std::get_if<std::string>(&value);
  const std::optional<E> chosen = text != nullptr ? choice_of<E>(*text) : std::nullopt;
  member = chosen.value_or(member);
  return chosen.has_value();
}
template <Chosen E>
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
struct WithoutOptional {
  using Type = T;
};
template <typename T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

template <typename T>
const MemberType& member_type() {
  using Set = typename WithoutOptional<T>::Type;
  std::vector<std::string> choices;
  if constexpr (Chosen<Set>)
    choices = texts_of<Set>();
  else if constexpr (requires { requires Chosen<typename Set::value_type>; })
    choices = texts_of<typename Set::value_type>();
  static const MemberType type = {
      Kind{static_cast<int>(read_member(Set{}).index()) - 1}, !std::is_same_v<T, Set>, choices,
      [](const void* member) { return read_member(*static_cast<const T*>(member)); },
      [](const Value& value, void* member) { return assign_member(value, *static_cast<T*>(member)); }};
  return type;
}

}  // namespace hyperion::config
