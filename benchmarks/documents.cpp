// Measures the cost of reading a corpus, for documents.py, and prints one JSON object.
//
//   benchmark_documents texts PATH TOKENIZER
//     One thread reads and encodes all documents: documents, tokens, seconds of the processor, and those
//     until the first file was open (Apache Arrow is loaded then, once in a process).
//   benchmark_documents loader PATH TOKENIZER SEQ_LEN N STATE
//     The loader makes N sequences of one epoch (0: all, in batches of 8) and writes its state to STATE:
//     tokens, seconds of the processor, the first batch's seconds of the clock, bytes read by then and in
//     all, and the largest memory of the process.
//   benchmark_documents resume PATH TOKENIZER SEQ_LEN 1 STATE
//     The loader does the same behind STATE.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "data/loader.h"
#include "data/sources.h"
#include "data/tokenizer/tokenizer.h"

#ifdef HYPERION_JEMALLOC
extern "C" const char* malloc_conf;
const char* malloc_conf =
    "oversize_threshold:0,dirty_decay_ms:-1,lg_extent_max_active_fit:63";  // app/main.cpp
#endif

namespace {

using namespace hyperion;
using namespace hyperion::data;

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// A number in a file of /proc: the one behind `name`.
uint64_t proc_number(const char* file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string word; stream >> word;)
    if (uint64_t number = 0; word == name && stream >> number) return number;
  return 0;
}

void read_texts(const std::string& path, const Encode& encode) {
  uint64_t documents = 0, tokens = 0;
  const double begin = processor_seconds();
  double opened = 0;
  for (const CorpusFile& file : find_corpus(path)) {
    const auto source = open_source(file, encode);
    if (opened == 0) opened = processor_seconds() - begin;
    for (uint64_t block = 0; const auto count = source->open_block(block); ++block)
      for (uint64_t i = 0; i < *count; ++i, ++documents) tokens += source->open(i);
  }
  fmt::print("{{\"documents\": {}, \"tokens\": {}, \"seconds\": {}, \"opened\": {}}}\n", documents, tokens,
             processor_seconds() - begin, opened);
}

void read_sequences(const LoaderOptions& options, int64_t sequences, const std::string& state, bool resumes) {
  const auto bytes_read = [] { return proc_number("/proc/self/io", "rchar:"); };
  const uint64_t bytes_before = bytes_read();
  const double before = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  DataLoader loader(options);
  if (resumes) loader.load_state(LoaderState::from_json(read_file(state)));
  uint64_t tokens = 0, bytes_first = 0;
  double first = 0;
  for (int64_t i = 0; sequences == 0 || i < sequences; ++i) {
    const std::optional<Batch> batch = loader.next();
    if (!batch) break;
    tokens += batch->tokens.size();
    if (i > 0) continue;
    first = seconds_since(begin);
    bytes_first = bytes_read() - bytes_before;
  }
  if (!resumes) write_file_atomic(state, loader.state().to_json());
  fmt::print(
      "{{\"tokens\": {}, \"seconds\": {}, \"first\": {}, \"bytes_first\": {}, \"bytes\": {}, \"memory\": "
      "{}}}\n",
      tokens, processor_seconds() - before, first, bytes_first, bytes_read() - bytes_before,
      proc_number("/proc/self/status", "VmHWM:") * 1024);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 3 ? argv[1] : "";
  const bool texts = mode == "texts" && argc == 4;
  if (!texts && !((mode == "loader" || mode == "resume") && argc == 7)) {
    std::fputs(
        "usage: benchmark_documents texts PATH TOKENIZER\n"
        "       benchmark_documents loader|resume PATH TOKENIZER SEQ_LEN SEQUENCES STATE\n",
        stderr);
    return 2;
  }
  const auto tokenizer = Tokenizer::load(argv[3]);
  const Encode encode = [&](std::string_view text) { return tokenizer->encode(text, kBosAndEos); };
  if (texts) {
    read_texts(argv[2], encode);
    return 0;
  }
  LoaderOptions options;
  options.sources = {{.path = argv[2]}};
  options.encode = encode;
  options.tokens.tokenizer_vocab_size = tokenizer->vocab_size();
  options.tokens.eos = tokenizer->eos_id();
  options.seq_len = std::stoll(argv[4]);
  const int64_t sequences = std::stoll(argv[5]);
  options.rows = sequences == 0 ? 8 : 1;
  options.prefetch = sequences == 0 ? 4 : 1;
  options.order.repeat = false;
  read_sequences(options, sequences, argv[6], mode == "resume");
  return 0;
} catch (const hyperion::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}
