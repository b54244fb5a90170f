// Checks and copies JSON token by token, without building values of numbers and strings.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::data {

// Returns the object with 0 in place of every value except the string of `field`, which may be in inner
// objects (see paths_of()), and null there. This removes what a parser with limits may refuse in other fields
// (numbers beyond 64 bits, deep nesting, lone surrogates). A key that is not Unicode text has its escapes
// written out. Returns "" if `json` is not valid JSON (RFC 8259) or not an object. `json` must be UTF-8.
std::string without_other_values(std::string_view json, std::string_view field);

}  // namespace hyperion::data
