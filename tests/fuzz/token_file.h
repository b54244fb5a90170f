// Reads all documents of a token file whose bytes are in memory.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/token_file.h"
#include "tests/fuzz/fuzz.h"

namespace hyperion::fuzz {

// A file that exists in memory only and keeps its descriptor.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {}
  InputFile write(const uint8_t* data, size_t size) const {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return InputFile("/proc/self/fd/" + std::to_string(fd_));
  }

 private:
  int fd_;
};

// Reads up to 200 documents. A document outside of the file, or a token outside of the vocabulary, ends the
// program.
inline void read_documents(data::TokenFileSource& source, const data::TokenFacts& facts) {
  std::vector<int64_t> tokens;
  source.sample(facts.eos);
  uint64_t left = 200, covered = 0;
  const uint64_t blocks = source.blocks().value();
  for (uint64_t block = 0; block < std::min<uint64_t>(blocks, 100); ++block) {
    const uint64_t documents = source.open_block(block).value();
    for (uint64_t i = 0; i < documents && left > 0; ++i, --left) {
      expect_bad_data_at_most([&] {
        const uint64_t length = source.open(i);
        if (length > source.tokens().count) std::abort();
        covered += length;
        tokens.resize(std::min<uint64_t>(length, 100));
        source.copy(length - tokens.size(), tokens);
        for (const int64_t token : tokens)
          if (token < 0 || static_cast<uint64_t>(token) >= facts.vocab_size) std::abort();
      });
    }
  }
  if (blocks > 1 && blocks <= 100 && left > 0 && covered != source.tokens().count) std::abort();
}

}  // namespace hyperion::fuzz
