// "Did you mean": the known name nearest to a misspelt one, and what is said instead of a word that is known
// and not available.
#pragma once

#include <string>
#include <string_view>

#include "trainer/config/option.h"

namespace hyperion::config {

// The configuration key that was meant by `name`: one with the same last part in another section ("steps"),
// else what other programs call so ("batch_size"), else the nearest by edit distance; "" when nothing is
// near. Bounded time for names of any length.
std::string nearest_key(std::string_view name);
// The table nearest to `name`; "" when nothing is near.
std::string nearest_section(std::string_view name);

// Of a key of torchtitan 0.1 that is not just called otherwise now: which key does what it did, or why none
// does; "" for other names.
std::string former_key(std::string_view name);
// The same of a table.
std::string former_section(std::string_view name);

// The one of the option's choices nearest to `text`; "" when none is near.
std::string nearest_choice(const Option& option, std::string_view text);

// For a `word` of torchtitan v0.2.2 or of another program that the key does not take here: what is missing,
// or which keys do the same; "" for other words. Upper case and punctuation make no difference ("Llama-4").
std::string unavailable_word(std::string_view key, std::string_view word);

}  // namespace hyperion::config
