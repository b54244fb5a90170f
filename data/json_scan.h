// JSON checked and copied token by token, without making values of numbers and strings.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::data {

// The object with 0 in place of every value but the string of `field`: what a parser that has limits of its
// own (numbers that fit 64 bits, some levels of nesting, no half surrogates) needs to see of it. A key that
// is no Unicode text has its escapes written out. "" when `json` is no valid JSON (RFC 8259) or no object.
// `json`: UTF-8.
std::string without_other_values(std::string_view json, std::string_view field);

}  // namespace hyperion::data
