#include "data/split_folder.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

struct SplitWord {
  std::string_view word, split;
};
constexpr std::array kSplitWords = {
    SplitWord{"train", "train"},      SplitWord{"training", "train"}, SplitWord{"validation", "validation"},
    SplitWord{"valid", "validation"}, SplitWord{"val", "validation"}, SplitWord{"dev", "validation"},
    SplitWord{"test", "test"},        SplitWord{"testing", "test"},   SplitWord{"eval", "test"},
    SplitWord{"evaluation", "test"},
};

// The word with which a name begins, if it is that of a split.
std::string_view split_word(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const std::string_view word(name.begin(), std::ranges::find_if_not(name, letter));
  return std::ranges::count(kSplitWords, word, &SplitWord::word) > 0 ? word : "";
}

// The name up to the innermost component that begins with the word of a split, and that word; both empty if
// there is none.
struct NamedSplit {
  std::string_view place, word;
};
NamedSplit find_split(std::string_view name) {
  while (!name.empty()) {
    const size_t slash = name.rfind('/');
    const size_t begin = slash == name.npos ? 0 : slash + 1;
    if (const std::string_view word = split_word(name.substr(begin)); !word.empty()) return {name, word};
    name = name.substr(0, slash == name.npos ? 0 : slash);
  }
  return {};
}

}  // namespace

std::string_view split_of(std::string_view name) {
  const std::string_view word = find_split(name).word;
  return word.empty() ? "" : std::ranges::find(kSplitWords, word, &SplitWord::word)->split;
}

void refuse_several_splits(std::span<const CorpusFile> files, const std::string& dataset_path,
                           const std::string& key) {
  if (!path_exists(dataset_path)) return;
  struct Split {
    size_t files = 0;
    std::string path;  // one that has it alone
  };
  std::map<std::string_view, Split> splits;
  for (const CorpusFile& file : files) {
    if (!holds_columns(file.format)) continue;
    const std::string_view split = split_of(file.name);
    if (split.empty()) continue;
    if (Split& found = splits[split]; found.files++ == 0) {
      const auto [place, word] = find_split(file.name);
      found.path = (fs::path(dataset_path) / place).string();
      if (place == file.name)  // its files have it in their names
        found.path = (fs::path(found.path).parent_path() / word).string() + "*";
    }
  }
  if (splits.size() < 2) return;
  std::string there;
  for (const auto& [split, found] : splits)
    there += fmt::format("{}{} ({} {} file{})", there.empty() ? "" : ", ", found.path, found.files, split,
                         found.files == 1 ? "" : "s");
  throw_data(
      "{} {}: is a folder with several splits, and all of them would be read: give the path of one: {}", key,
      dataset_path, there);
}

bool describes_dataset(const fs::path& path) {
  const std::string name = path.filename();
  if (name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json") return true;
  std::error_code ignored;
  const bool saved = fs::exists(path.parent_path() / "dataset_info.json", ignored);
  // The datasets library keeps the results of map() and filter() next to what it saved.
  return saved && (name == "state.json" || (name.starts_with("cache-") && path.extension() == ".arrow"));
}

}  // namespace hyperion::data
