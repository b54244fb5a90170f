// Numbers of things, as messages say them.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace hyperion {

std::string human_count(uint64_t count);  // "12,345,678"
std::string human_bytes(uint64_t bytes);  // "1.50 GiB"

// "1 file", "2,000 files"; `plural` where an s does not make it: "2 entries".
std::string counted_text(uint64_t count, std::string_view noun, std::string_view plural);

// `count`: not negative.
template <std::integral Count>
std::string counted(Count count, std::string_view noun, std::string_view plural = "") {
  return counted_text(static_cast<uint64_t>(count), noun, plural);
}

}  // namespace hyperion
