// Documents to train on: JSON lines, compressed files, and a tokenizer of one token per byte.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "tests/support/temporary_folder.h"

namespace hyperion::test {

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

inline constexpr int32_t kBos = 256;
inline constexpr int32_t kEos = 257;

inline std::vector<int32_t> encode_bytes(std::string_view text) {
  std::vector<int32_t> tokens = {kBos};
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  tokens.push_back(kEos);
  return tokens;
}

// `documents` lines, document i with i % 37 + 1 words that name it.
inline std::string json_lines(int documents, const std::string& name) {
  std::string lines;
  for (int i = 0; i < documents; ++i) {
    std::string text;
    for (int word = 0; word <= i % 37; ++word) text += name + std::to_string(i) + " ";
    lines += R"({"url": "x", "text": ")" + text + "\"}\n";
  }
  return lines;
}

// Three files, one of each kind, 60 documents in all.
class Corpus : public TemporaryFolder {
 public:
  Corpus() {
    write("a.jsonl", json_lines(20, "alpha"));
    write("b.jsonl.gz", gzip(json_lines(15, "beta")));
    write("c.jsonl.zst", zstd(json_lines(25, "gamma")));
  }
};

}  // namespace hyperion::test
