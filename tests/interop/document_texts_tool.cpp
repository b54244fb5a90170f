// Writes the texts of a corpus as a job would read them, for arrow_peer.py: document_texts_tool PATH FIELD >
// texts. Out: for each document, file by file and block by block, a u32 length and its bytes, little-endian.
// Each file is opened a second time with its blocks in reverse order, and must give the same.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/sources.h"

namespace {

std::vector<std::string> texts_of(hyperion::data::TextFile& file, uint64_t block) {
  std::vector<std::string> texts;
  const uint64_t documents = file.open_block(block).value();
  for (uint64_t i = 0; i < documents; ++i) texts.emplace_back(file.text(i));
  return texts;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: document_texts_tool PATH FIELD > texts\n");
    return 2;
  }
  const hyperion::data::TextField field = {argv[2]};
  for (const auto& corpus_file : hyperion::data::find_corpus(argv[1])) {
    const auto file = hyperion::data::open_text(corpus_file, field);
    std::vector<std::vector<std::string>> blocks;
    while (file->open_block(blocks.size())) blocks.push_back(texts_of(*file, blocks.size()));
    const auto again = hyperion::data::open_text(corpus_file, field);
    for (size_t block = blocks.size(); again->blocks() && block-- > 0;)
      if (texts_of(*again, block) != blocks[block]) hyperion::throw_bug("block {} read twice differs", block);
    for (const auto& block : blocks) {
      for (const std::string& text : block) {
        const auto size = static_cast<uint32_t>(text.size());
        std::fwrite(&size, sizeof size, 1, stdout);
        std::fwrite(text.data(), 1, text.size(), stdout);
      }
    }
  }
  return 0;
} catch (const hyperion::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
