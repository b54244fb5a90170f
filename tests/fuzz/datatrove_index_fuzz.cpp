// Any bytes as datatrove's X.ds.index, behind two bytes with the size of an X.ds.
#include "data/raw_tokens.h"
#include "tests/fuzz/token_file.h"

using namespace hyperion;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryFile tokens, index;
  if (size < 2) return 0;
  const data::TokenFacts facts = {.vocab_size = 30000, .tokenizer_vocab_size = 30000, .eos = 1};
  const std::vector<uint8_t> content(data[0] + 256 * (data[1] % 8), 1);
  fuzz::expect_bad_data_at_most([&] {
    data::DatatroveSource source(tokens.write(content.data(), content.size()),
                                 index.write(data + 2, size - 2), facts);
    fuzz::read_documents(source, facts);
  });
  return 0;
}
