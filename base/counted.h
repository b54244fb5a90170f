// Formats counts and sizes for messages.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace hyperion {

std::string format_count(uint64_t count);  // "12,345,678"
std::string format_bytes(uint64_t bytes);  // "1.50 GiB"

// "1 file", "2,000 files". `plural` is for nouns that do not just take an s: "2 entries".
std::string counted_text(uint64_t count, std::string_view noun, std::string_view plural);

// `count` must not be negative.
template <std::integral Count>
std::string counted(Count count, std::string_view noun, std::string_view plural = "") {
  return counted_text(static_cast<uint64_t>(count), noun, plural);
}

}  // namespace hyperion
