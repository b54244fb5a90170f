// The small files of tests/assets/arrow, which pyarrow wrote (make.py there).
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "data/document_source.h"

namespace hyperion::data {

inline std::filesystem::path asset(const std::string& name) {
  return std::filesystem::path(HYPERION_SOURCE_DIR) / "tests/assets/arrow" / name;
}

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<std::string> block_texts(TextFile& file, uint64_t block) {
  std::vector<std::string> texts;
  const uint64_t documents = file.open_block(block).value();
  for (uint64_t i = 0; i < documents; ++i) texts.emplace_back(file.text(i));
  return texts;
}

using Texts = std::vector<std::string>;

inline std::string six() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "six ";
  return text;
}

}  // namespace hyperion::data
