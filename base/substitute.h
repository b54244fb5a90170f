// What stands in the place of a file that was to be read: tools that fetch or convert files leave these
// behind.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

class InputFile;

// Bytes from the front of a file that substitute_of() looks at.
inline constexpr size_t kSubstituteBytes = 64;

// What a file that begins with `head` is instead of itself, and what to do: a Git LFS pointer, a page of a
// web server and, where a text was expected, text in UTF-16. "" for everything else. read_file() and
// read_file_or_pipe() refuse a file of text for it.
std::string substitute_of(std::string_view head, bool text = true);
std::string substitute_of(const InputFile& file, bool text = true);

}  // namespace hyperion
