// Text from outside in an HTML page. No I/O.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::report {

// For the text of an element and for an attribute in quotes: & < > " ' as entities; control bytes, what is
// not UTF-8 and the characters that turn the direction of writing as U+FFFD. At most `max_bytes` are
// taken, and "…" follows.
std::string html_text(std::string_view text, size_t max_bytes = 2000);

}  // namespace hyperion::report
