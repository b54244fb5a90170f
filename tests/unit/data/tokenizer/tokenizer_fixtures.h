// What the tokenizer tests share: the committed tokenizer, and a copy of it in a folder of its own to change.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::data {

inline const std::string kSmallTokenizer = HYPERION_SOURCE_DIR "/tests/assets/tokenizer";
inline const std::string kSomeText =
    "It is a truth \u4e2d\u6587 universally  acknowledged, <|end_of_text|> 1813\n\nx";

class TokenizerFolder {
 public:
  TokenizerFolder() {
    std::filesystem::copy(kSmallTokenizer, folder_.path(), std::filesystem::copy_options::recursive);
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::string text() const { return read_file(path() / "tokenizer.json"); }
  nlohmann::json content() const { return nlohmann::json::parse(text()); }
  void write(const std::string& text) const { write_file_atomic(path() / "tokenizer.json", text); }
  void write(const nlohmann::json& content) const { write(content.dump()); }

 private:
  test::TemporaryFolder folder_;
};

}  // namespace hyperion::data
