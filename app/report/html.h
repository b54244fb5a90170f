// Escapes untrusted text for an HTML page. No I/O.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::report {

// Escapes text for an element or a quoted attribute: & < > " ' become entities; control bytes, invalid UTF-8
// and characters that change the writing direction become U+FFFD. Text beyond `max_bytes` is cut and "…"
// follows.
std::string html_text(std::string_view text, size_t max_bytes = 2000);

}  // namespace hyperion::report
