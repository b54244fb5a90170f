// What the tokenizer tests share: the committed tokenizer, and a copy of it in a folder of its own to change.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/files.h"

inline const std::string kSmallTokenizer = HYPERION_SOURCE_DIR "/tests/assets/tokenizer";
inline const std::string kSomeText =
    "It is a truth \u4e2d\u6587 universally  acknowledged, <|end_of_text|> 1813\n\nx";

class TokenizerFolder {
 public:
  TokenizerFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("hyperion_tokenizer_test_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::copy(kSmallTokenizer, path_);
  }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;
  ~TokenizerFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }
  std::string text() const { return hyperion::read_file(path_ / "tokenizer.json"); }
  nlohmann::json content() const { return nlohmann::json::parse(text()); }
  void write(const std::string& text) const { hyperion::write_file_atomic(path_ / "tokenizer.json", text); }
  void write(const nlohmann::json& content) const { write(content.dump()); }

 private:
  std::filesystem::path path_;
};
