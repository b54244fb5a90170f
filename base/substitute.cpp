#include "base/substitute.h"

#include <algorithm>

#include "base/files.h"

namespace hyperion {
namespace {

// Four characters of ASCII in UTF-16 without a byte order mark; `zero`: which byte of each is 0.
bool is_ascii_in_utf16(std::string_view head, size_t zero) {
  if (head.size() < 8) return false;
  for (size_t i = 0; i < 8; ++i) {
    const auto byte = static_cast<unsigned char>(head[i]);
    if (i % 2 == zero ? byte != 0 : byte == 0 || byte >= 0x80) return false;
  }
  return true;
}

}  // namespace

std::string substitute_of(std::string_view head, bool text) {
  if (text && (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF") || is_ascii_in_utf16(head, 0) ||
               is_ascii_in_utf16(head, 1)))
    return "is text in UTF-16, expected UTF-8: convert it, for example with iconv -f UTF-16 -t UTF-8";
  if (head.starts_with("version https://git-lfs"))
    return "is a pointer of Git LFS and not the file itself: run git lfs pull where it was cloned, or "
           "download the file";
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  std::string begin(head.substr(0, 14));
  std::ranges::transform(begin, begin.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (begin.starts_with("<!doctype html") || begin.starts_with("<html") || begin.starts_with("<?xml"))
    return "is a page of a web server (HTML or XML) and not the file itself: it names the reason; download "
           "the file again, with a login where the server wants one";
  return "";
}

std::string substitute_of(const InputFile& file, bool text) {
  std::string head(std::min<uint64_t>(kSubstituteBytes, file.size()), '\0');
  file.read(0, head.data(), head.size());
  return substitute_of(head, text);
}

}  // namespace hyperion
