#include "trainer/config/data_source.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace hyperion::config {
namespace {

// Endings of files that are data, the last first.
constexpr std::string_view kEndings[] = {".gz",      ".zst",   ".zstd", ".json", ".jsonl", ".ndjson", ".txt",
                                         ".parquet", ".arrow", ".bin",  ".idx",  ".npy",   ".ds"};

}  // namespace

std::string name_of(const DataSource& source) {
  if (source.name) return *source.name;
  std::string_view path = source.path;
  std::string name;
  while (name.empty() && !path.empty()) {
    const size_t slash = path.rfind('/');
    name = path.substr(slash == path.npos ? 0 : slash + 1);
    if (name.find_first_of("*?[{") != name.npos || name == "." || name == "..") name.clear();
    path = path.substr(0, slash == path.npos ? 0 : slash);
  }
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view ending : kEndings) {
      if (name.size() <= ending.size() || !name.ends_with(ending)) continue;
      name.resize(name.size() - ending.size());
      more = true;
    }
  }
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c) && c != '-' && c != '.' && c != '_'; }, '_');
  return name;
}

}  // namespace hyperion::config
