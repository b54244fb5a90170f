// Finds the known name nearest to a misspelt one ("Did you mean"), and explains words that are known but not
// available.
#pragma once

#include <string>
#include <string_view>

#include "trainer/config/option.h"

namespace hyperion::config {

// Returns the configuration key that `name` probably means: the key of another section with the same last
// part ("steps"), else the key that other programs call so ("batch_size"), else the nearest by edit distance;
// "" if none is near. Takes bounded time for names of any length.
std::string nearest_key(std::string_view name);
// Returns the table nearest to `name`; "" if none is near.
std::string nearest_section(std::string_view name);

// Returns, for a key of torchtitan 0.1 that was not merely renamed, the key that replaces it or the reason
// why none does; "" for other names.
std::string former_key(std::string_view name);
// Does the same for a table.
std::string former_section(std::string_view name);

// Returns the option's choice nearest to `text`; "" if none is near.
std::string nearest_choice(const Option& option, std::string_view text);

// Returns, for a `word` of torchtitan v0.2.2 or another program that `key` does not take here, the missing
// feature or the keys that do the same; "" for other words. Case and punctuation do not matter ("Llama-4").
std::string unavailable_word(std::string_view key, std::string_view word);

}  // namespace hyperion::config
