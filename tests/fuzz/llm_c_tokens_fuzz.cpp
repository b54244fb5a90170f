// Any bytes as a file of llm.c, in blocks of three tokens.
#include "data/raw_tokens.h"
#include "tests/fuzz/token_file.h"

using namespace hyperion;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryFile file;
  const data::TokenFacts facts = {.vocab_size = 130000, .tokenizer_vocab_size = 60000, .eos = 1};
  fuzz::expect_bad_data_at_most([&] {
    data::LlmCSource source(file.write(data, size), facts, 3);
    fuzz::read_documents(source, facts);
  });
  return 0;
}
