// Megabytes a second of one thread of the tokenizer: benchmark_tokenizer TOKENIZER FILE... prints a JSON line
// a file. benchmarks/tokenizer.py compares it with Hugging Face `tokenizers`.
#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: benchmark_tokenizer TOKENIZER FILE...\n");
    return 2;
  }
  // processor time, which other programs on the machine disturb less than the clock on the wall
  const auto now = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const auto tokenizer = hyperion::data::Tokenizer::load(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::string text = hyperion::read_file(argv[i]);
    std::vector<double> seconds;
    size_t tokens = 0;
    for (int round = 0; round < 5; ++round) {
      const double begin = now();
      tokens = tokenizer->encode(text).size();
      seconds.push_back(now() - begin);
    }
    fmt::print("{{\"file\": {:?}, \"bytes\": {}, \"tokens\": {}, \"best_seconds\": {:.6f}}}\n",
               std::string(argv[i]), text.size(), tokens, *std::min_element(seconds.begin(), seconds.end()));
  }
  return 0;
} catch (const hyperion::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
