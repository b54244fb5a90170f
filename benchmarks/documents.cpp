// How many tokens a second one thread reads and encodes of a corpus: benchmark_documents PATH TOKENIZER, for
// documents.py. Prints one JSON object: documents, tokens, seconds of the processor, and those to the first
// document.
#include <chrono>
#include <cstdio>
#include <ctime>

#include <fmt/format.h>

#include "data/sources.h"
#include "data/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  using namespace hyperion::data;
  if (argc != 3) {
    std::fputs("usage: benchmark_documents PATH TOKENIZER\n", stderr);
    return 2;
  }
  const auto tokenizer = Tokenizer::load(argv[2]);
  const Encode encode = [&](std::string_view text) { return tokenizer->encode(text, true, true); };
  const std::clock_t begin = std::clock();
  const auto seconds = [&] { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; };
  uint64_t documents = 0, tokens = 0;
  double first = 0;
  for (const CorpusFile& file : find_corpus(argv[1])) {
    const auto source = open_source(file, encode);
    for (uint64_t block = 0; const auto count = source->open_block(block); ++block) {
      for (uint64_t i = 0; i < *count; ++i) {
        tokens += source->open(i);
        if (documents++ == 0) first = seconds();
      }
    }
  }
  fmt::print("{{\"documents\": {}, \"tokens\": {}, \"seconds\": {}, \"first\": {}}}\n", documents, tokens,
             seconds(), first);
}
