// Encodes many texts in one process, for tokenizers_peer.py: tokenize_tool TOKENIZER < texts > ids.
// In: for each text a u32 length and its bytes. Out: for each text a u32 count, its ids as i32, then what the
// ids decode to in the form of the input. All little-endian.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

namespace {

void write_all(const void* data, size_t size) {
  std::fwrite(data, 1, size, stdout);
}

void write_u32(size_t value) {
  const auto word = static_cast<uint32_t>(value);
  write_all(&word, sizeof word);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenize_tool TOKENIZER < texts > ids\n");
    return 2;
  }
  const auto tokenizer = hyperion::data::Tokenizer::load(argv[1]);
  std::string text;
  uint32_t size = 0;
  while (std::fread(&size, sizeof size, 1, stdin) == 1) {
    text.resize(size);
    if (std::fread(text.data(), 1, size, stdin) != size) return 65;
    const std::vector<int32_t> ids = tokenizer->encode(text);
    write_u32(ids.size());
    write_all(ids.data(), ids.size() * sizeof(int32_t));
    const std::string back = tokenizer->decode(ids);
    write_u32(back.size());
    write_all(back.data(), back.size());
  }
  return std::fflush(stdout) == 0 ? 0 : 74;
} catch (const hyperion::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
