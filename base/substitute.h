// Recognizes files that stand for others: Git LFS pointers, web pages, and so on.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

class InputFile;

// The number of leading bytes of a file that substitute_of() examines.
inline constexpr size_t kSubstituteBytes = 64;

// Says what a file that begins with `head` is instead of its real content, and what to do: a Git LFS
// pointer, a web page and, if text was expected, UTF-16 text. "" for everything else. read_file() and
// read_file_or_pipe() refuse such a text file.
std::string substitute_of(std::string_view head, bool text = true);
std::string substitute_of(const InputFile& file, bool text = true);

}  // namespace hyperion
