// How each C++ type that a member of JobConfig may have is read and written as a value of TOML.
#pragma once

#include <string>
#include <type_traits>

#include "trainer/config/option.h"

namespace hyperion {

// Types that a Value holds as they are.
template <typename T>
struct MemberTraits {
  static constexpr Kind kKind = std::is_same_v<T, bool>                       ? Kind::kBool
                                : std::is_same_v<T, int64_t>                  ? Kind::kInteger
                                : std::is_same_v<T, double>                   ? Kind::kNumber
                                : std::is_same_v<T, std::string>              ? Kind::kText
                                : std::is_same_v<T, std::vector<std::string>> ? Kind::kList
                                : std::is_same_v<T, TextTable>                ? Kind::kTable
                                                                              : Kind::kListOfLists;
  static constexpr bool kOptional = false;
  static std::vector<std::string> choices() { return {}; }
  static Value read(const T& member) { return member; }
  static bool assign(const Value& value, T& member) {
    if constexpr (std::is_same_v<T, double>) {  // a whole number is a number too
      if (const auto* whole = std::get_if<int64_t>(&value)) return member = static_cast<double>(*whole), true;
    }
    const T* same = std::get_if<T>(&value);
    if (same != nullptr) member = *same;
    return same != nullptr;
  }
};

// An enumeration is the text of its value.
template <Chosen E>
struct MemberTraits<E> {
  static constexpr Kind kKind = Kind::kText;
  static constexpr bool kOptional = false;
  static std::vector<std::string> choices() { return texts_of<E>(); }
  static Value read(E member) { return std::string(text_of(member)); }
  static bool assign(const Value& value, E& member) {
    const auto* text = std::get_if<std::string>(&value);
    const std::optional<E> chosen = text != nullptr ? choice_of<E>(*text) : std::nullopt;
    if (chosen) member = *chosen;
    return chosen.has_value();
  }
};

template <Chosen E>
struct MemberTraits<std::vector<E>> {
  static constexpr Kind kKind = Kind::kList;
  static constexpr bool kOptional = false;
  static std::vector<std::string> choices() { return texts_of<E>(); }
  static Value read(const std::vector<E>& member) {
    std::vector<std::string> texts;
    for (const E value : member) texts.emplace_back(text_of(value));
    return texts;
  }
  static bool assign(const Value& value, std::vector<E>& member) {
    const auto* texts = std::get_if<std::vector<std::string>>(&value);
    if (texts == nullptr) return false;
    std::vector<E> chosen(texts->size());
    for (size_t i = 0; i < chosen.size(); ++i)
      if (!MemberTraits<E>::assign((*texts)[i], chosen[i])) return false;
    member = std::move(chosen);
    return true;
  }
};

template <typename T>
struct MemberTraits<std::optional<T>> : MemberTraits<T> {
  static constexpr bool kOptional = true;
  static Value read(const std::optional<T>& member) {
    return member ? MemberTraits<T>::read(*member) : Value();
  }
  static bool assign(const Value& value, std::optional<T>& member) {
    if (std::holds_alternative<std::monostate>(value)) return member.reset(), true;
    T held{};
    if (!MemberTraits<T>::assign(value, held)) return false;
    member = std::move(held);
    return true;
  }
};

template <typename T>
const MemberType& member_type() {
  using Traits = MemberTraits<T>;
  static const MemberType type = {
      Traits::kKind, Traits::kOptional, Traits::choices(),
      [](const void* member) { return Traits::read(*static_cast<const T*>(member)); },
      [](const Value& value, void* member) { return Traits::assign(value, *static_cast<T*>(member)); }};
  return type;
}

}  // namespace hyperion
