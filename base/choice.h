// Enumerations with texts. An enumeration whose values users write declares its texts once, next to itself:
//
//   enum class Shape { kRound, kSquare };
//   constexpr auto choices(Shape) {
//     return choice_list<Shape>({{Shape::kRound, "round"}, {Shape::kSquare, "square"}});
//   }
//
// The configuration's schema, the command line, files and messages read and write values by these texts.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hyperion {

template <typename E>
struct Choice {
  E value;
  std::string_view text;
};

template <typename E, size_t N>
constexpr std::array<Choice<E>, N> choice_list(const Choice<E> (&list)[N]) {
  return std::to_array(list);
}

template <typename E>
concept EnumWithTexts = std::is_enum_v<E> && requires(E value) {
  choices(value);
};

template <EnumWithTexts E>
constexpr std::string_view text_of(E value) {
  for (const Choice<E>& choice : choices(value))
    if (choice.value == value) return choice.text;
  return {};
}

// The texts of all values, in the order of choices().
template <EnumWithTexts E>
std::vector<std::string> texts_of() {
  std::vector<std::string> texts;
  for (const Choice<E>& choice : choices(E{})) texts.emplace_back(choice.text);
  return texts;
}

// The value with this text; nullopt if there is none.
template <EnumWithTexts E>
constexpr std::optional<E> choice_of(std::string_view text) {
  for (const Choice<E>& choice : choices(E{}))
    if (choice.text == text) return choice.value;
  return std::nullopt;
}

}  // namespace hyperion
