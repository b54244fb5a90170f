// How fast tokens are read from token files in the order of training, compared with pread() of the same
// documents.
//   benchmark_token_files [TOKENS [MEAN_DOCUMENT [ROUNDS [FOLDER]]]]
// uint16 tokens (default 200 million) of documents of MEAN_DOCUMENT tokens on average (1,000, of exponential
// distribution), in the page cache. Every round measures all works once; printed are medians, quartiles and
// the medians of the ratios in a round. Rates are those of one core: tokens over the processor time of the
// process, all of its threads.
//
// "pread" reads what the format needs to find each document, in random order, and the document. "least work"
// then widens it to int64 and writes each token twice, as input and as label, to the memory of the batches
// that a loader has ready: 18 bytes of a token instead of 2, the limit of any loader of int64 batches.
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "base/files.h"
#include "base/philox.h"
#include "data/document_order.h"
#include "data/loader.h"
#include "data/megatron.h"
#include "data/token_shards.h"

#ifdef HYPERION_JEMALLOC
extern "C" const char* malloc_conf;
const char* malloc_conf =
    "oversize_threshold:0,dirty_decay_ms:-1,lg_extent_max_active_fit:63";  // app/main.cpp
#endif

using namespace hyperion;
using namespace hyperion::data;
namespace fs = std::filesystem;

namespace {

constexpr size_t kSeqLen = 8192;
constexpr size_t kRows = 8;
constexpr uint64_t kVocabulary = 50257;
constexpr uint64_t kSeed = 1;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Writes the same documents in every format into folders of `folder`. Returns the documents' ends.
std::vector<uint64_t> write_files(const fs::path& folder, uint64_t tokens, double mean) {
  TokenShardWriter writer(folder / "shard", kVocabulary, "", "");
  std::vector<uint64_t> ends;
  std::vector<int64_t> document;
  uint64_t counter = 0;
  for (uint64_t at = 0; at < tokens; ends.push_back(at)) {
    const auto draw = philox4x32(kSeed, counter++);
    const double length = -std::log((draw[0] + 1.0) / 4294967297.0) * mean;
    document.resize(std::min(tokens - at, static_cast<uint64_t>(length) + 1));
    uint64_t random = draw[1];
    for (int64_t& token : document) {
      random = random * 6364136223846793005 + 1442695040888963407;
      token = static_cast<int64_t>((random >> 40) % (kVocabulary - 1) + 1);
    }
    document.back() = 0;  // EOS
    writer.add(document);
    at += document.size();
  }
  writer.finish();
  for (const char* name : {"megatron", "datatrove", "olmo"}) fs::create_directories(folder / name);
  for (const char* copy : {"megatron/x.bin", "datatrove/x.ds", "olmo/x.npy"})
    fs::create_hard_link(folder / "shard" / "tokens.bin", folder / copy);
  fs::create_hard_link(folder / "shard" / "documents.bin", folder / "datatrove" / "x.ds.index");
  write_megatron_index(InputFile(folder / "shard" / "documents.bin"), TokenType::kU16,
                       folder / "megatron" / "x.idx");
  return ends;
}

void read_pieces(const fs::path& path) {
  const InputFile file(path);
  std::vector<char> piece(size_t{128} << 10);
  for (uint64_t at = 0; at < file.size(); at += piece.size())
    file.read(at, piece.data(), std::min<uint64_t>(piece.size(), file.size() - at));
}

// Reads what a format needs to find a document.
using Find = std::function<void(uint64_t document)>;

// Calls take(tokens) for every document in random order.
void read_documents(const fs::path& folder, const std::vector<uint64_t>& ends, const Find& find,
                    const std::function<void(std::span<const uint16_t>)>& take) {
  const InputFile file(folder / "shard" / "tokens.bin");
  std::vector<uint16_t> tokens;
  const Permutation order(ends.size(), kSeed, 0, 1, /*shuffle=*/true);
  std::array<uint64_t, 64> next{};
  for (uint64_t i = 0; i < ends.size(); ++i) {
    if (i % next.size() == 0) order.fill(i, std::span(next).first(std::min(next.size(), ends.size() - i)));
    const uint64_t document = next[i % next.size()], begin = document == 0 ? 0 : ends[document - 1];
    const uint64_t count = ends[document] - begin;
    if (tokens.size() < count) tokens.resize(count);
    find(document);
    file.read(begin * 2, tokens.data(), count * 2);
    take(std::span(tokens.data(), count));
  }
}

void widen(const uint16_t* from, int64_t* to, size_t count) {
  constexpr size_t kGroup = 128;  // a loop of known length is vectorized
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup)
    for (size_t j = 0; j < kGroup; ++j) to[i + j] = from[i + j];
  for (; i < count; ++i) to[i] = from[i];
}

void least_work(const fs::path& folder, const std::vector<uint64_t>& ends, const Find& find) {
  constexpr size_t kRing = 6 * kRows * kSeqLen;  // prefetch = 4, one in preparation, one in use
  std::vector<int64_t> inputs(kRing + 1), labels(kRing);
  size_t row = 0, filled = 0;  // of the row
  read_documents(folder, ends, find, [&](std::span<const uint16_t> tokens) {
    while (!tokens.empty()) {
      const size_t part = std::min(tokens.size(), kSeqLen + 1 - filled);
      widen(tokens.data(), inputs.data() + row + filled, part);
      tokens = tokens.subspan(part);
      filled += part;
      if (filled <= kSeqLen) continue;
      std::copy_n(inputs.data() + row + 1, kSeqLen, labels.data() + row);
      const int64_t last = inputs[row + kSeqLen];
      row = (row + kSeqLen) % kRing;
      inputs[row] = last;
      filled = 1;
    }
  });
}

// All documents in random order, without the loader's packing.
void read_source(const fs::path& path) {
  CorpusFile file = find_corpus(path.string()).at(0);
  file.facts = {.vocab_size = kVocabulary, .tokenizer_vocab_size = kVocabulary, .eos = 0};
  StreamOptions options;
  options.seed = kSeed;
  CorpusReader reader({file}, {}, options);
  std::vector<int64_t> tokens;
  while (reader.draw(/*one_epoch=*/true)) {
    const uint64_t length = reader.open().length;
    if (tokens.size() < length) tokens.resize(length);
    reader.copy(0, std::span(tokens).first(length));
  }
}

void read_batches(const fs::path& path) {
  LoaderOptions options;
  options.sources = {{.path = path.string()}};
  options.seq_len = kSeqLen;
  options.rows = kRows;
  options.order.repeat = false;
  options.order.seed = kSeed;
  options.tokens.vocab_size = options.tokens.tokenizer_vocab_size = kVocabulary;
  options.tokens.eos = 0;
  DataLoader loader(options);
  while (loader.next()) {
  }
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
}

}  // namespace

int main(int argc, char** argv) try {
  const uint64_t tokens = argc > 1 ? std::stoull(argv[1]) : 200'000'000;
  const double mean = argc > 2 ? std::stod(argv[2]) : 1000;
  const int rounds = argc > 3 ? std::stoi(argv[3]) : 7;
  const fs::path folder = fs::path(argc > 4 ? argv[4] : fs::temp_directory_path().string()) /
                          fmt::format("hyperion_token_files_{}", ::getpid());
  fs::create_directories(folder);
  const std::vector<uint64_t> ends = write_files(folder, tokens, mean);
  const InputFile documents(folder / "shard" / "documents.bin"), index(folder / "megatron" / "x.idx");
  const auto read_number = [](const InputFile& file, uint64_t offset, size_t bytes) {
    std::array<char, 16> number{};
    file.read(offset, number.data(), bytes);
  };
  const Find find_end = [&](uint64_t document) {
    read_number(documents, document == 0 ? 0 : (document - 1) * 8, document == 0 ? 8 : 16);
  };
  const Find find_sequence = [&](uint64_t document) {
    read_number(index, 34 + 12 * ends.size() + 8 * document, 16);
    read_number(index, 34 + 4 * document, 4);
    read_number(index, 34 + 4 * ends.size() + 8 * document, 8);
  };
  struct Format {
    const char* name;
    fs::path path;
    Find find;
  };
  const std::vector<Format> formats = {{"token shard", folder / "shard", find_end},
                                       {"datatrove", folder / "datatrove", find_end},
                                       {"Megatron", folder / "megatron" / "x.bin", find_sequence},
                                       {"OLMo", folder / "olmo", [](uint64_t) {}}};
  std::vector<std::pair<std::string, std::function<void()>>> works = {
      {"pread in order, 128 KiB", [&] { read_pieces(folder / "shard" / "tokens.bin"); }}};
  for (const Format& format : formats) {
    const auto add = [&](const char* what, std::function<void()> work) {
      works.emplace_back(fmt::format("{}: {}", format.name, what), std::move(work));
    };
    add("pread", [&] { read_documents(folder, ends, format.find, [](auto) {}); });
    add("least work", [&] { least_work(folder, ends, format.find); });
    add("documents", [&] { read_source(format.path); });
    add("loader", [&] { read_batches(format.path); });
  }
  std::vector<std::vector<double>> rates(works.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      const double begin = processor_seconds();
      works[i].second();
      if (round >= 0) rates[i].push_back(static_cast<double>(tokens) / (processor_seconds() - begin));
    }
  }
  fs::remove_all(folder);
  fmt::print("{} documents, {} tokens, {} rounds\n", ends.size(), tokens, rounds);
  fmt::print("{:28} {:>10} {:>15} {:>9} {:>14}\n", "", "M tokens/s", "quartiles", "of pread",
             "of least work");
  for (size_t i = 0; i < works.size(); ++i) {
    const auto ratio = [&](size_t base) {
      std::vector<double> ratios;
      for (size_t round = 0; round < rates[i].size(); ++round)
        ratios.push_back(rates[i][round] / rates[base][round]);
      return quantile(ratios, 0.5);
    };
    fmt::print("{:28} {:10.0f} {:7.0f} {:7.0f}", works[i].first, quantile(rates[i], 0.5) / 1e6,
               quantile(rates[i], 0.25) / 1e6, quantile(rates[i], 0.75) / 1e6);
    if (const size_t first = (i - 1) / 4 * 4 + 1; i > 0)  // of the format
      fmt::print(" {:9.2f} {:14.2f}", ratio(first), ratio(first + 1));
    fmt::print("\n");
  }
  return 0;
} catch (const hyperion::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.code());
}
