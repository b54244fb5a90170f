// "Did you mean": the known name nearest to a misspelt one, and what is said instead of a word that is known
// and not available.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::config {

// The configuration key that was meant by `name`: one with the same last part in another section ("steps"),
// else what other programs call so ("batch_size"), else the nearest by edit distance; "" when nothing is
// near. Bounded time for names of any length.
std::string nearest_key(std::string_view name);
// The table nearest to `name`; "" when nothing is near.
std::string nearest_section(std::string_view name);

// For a `word` of torchtitan v0.2.2 or of another program that the key does not take here: what is missing,
// or which keys do the same; "" for other words. Upper case and punctuation make no difference ("Llama-4").
std::string unavailable_word(std::string_view key, std::string_view word);

}  // namespace hyperion::config
