// How many tokens per second the data loader prepares, from text and from one token shard for 64 ranks, and
// the tokenizer alone. benchmark_token_files measures token files.
//   benchmark_data_loader [TOKENIZER_PATH] [CORPUS.jsonl] [OUT.json]
// Without arguments: one token per byte, and a generated corpus of 32 MB.
#include <chrono>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include "base/files.h"
#include "base/philox.h"
#include "data/json_lines.h"
#include "data/loader.h"
#include "data/token_shards.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/thread_ranks.h"

using namespace hyperion;
using namespace hyperion::data;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kSeqLen = 2048;
constexpr int64_t kRows = 8;

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Documents of 100 to 1,000 words of 1 to 10 letters.
std::string generate_corpus(size_t bytes) {
  std::string lines;
  uint64_t counter = 0;
  const auto random = [&](uint32_t below) { return philox4x32(1, counter++)[0] % below; };
  while (lines.size() < bytes) {
    lines += "{\"text\": \"";
    for (uint32_t words = 100 + random(900); words > 0; --words) {
      for (uint32_t letters = 1 + random(10); letters > 0; --letters)
        lines += static_cast<char>('a' + random(26));
      lines += ' ';
    }
    lines += "\"}\n";
  }
  return lines;
}

void write_gzip(const fs::path& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb6");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

// Tokens a second of one pass, as rank `rank` of `degree`.
double loader_rate(const fs::path& path, const Encode& encode, int64_t degree) {
  LoaderOptions options;
  options.sources = {{.path = path.string()}};
  options.encode = encode;
  options.seq_len = kSeqLen;
  options.rows = kRows;
  options.dp_degree = degree;
  options.order.repeat = false;
  options.tokens.eos = 0;
  DataLoader loader(options);
  const double seconds = seconds_of([&] {
    while (loader.next()) {
    }
  });
  return static_cast<double>(loader.state().sequence * kSeqLen) / seconds;
}

struct PairRate {
  double rate = 0;       // tokens of the global stream per second
  double processor = 0;  // seconds of all threads per million of these tokens
};

// Two ranks of one node that read the same microbatches of the stream; `together`: each tokenises its share.
PairRate pair_rate(const fs::path& path, const Encode& encode, int64_t tokens, bool together) {
  const int64_t batches = tokens / (2 * kSeqLen * kRows);
  const std::clock_t begin = std::clock();
  const double seconds = seconds_of([&] {
    test::ThreadRanks::run(2, [&](Coordinator& ranks) {
      LoaderOptions options;
      options.sources = {{.path = path.string()}};
      options.encode = encode;
      options.seq_len = kSeqLen;
      options.rows = kRows;
      options.dp_degree = 2;
      options.dp_rank = ranks.rank();
      if (together) options.sources.front().node = NodeDocuments::make(ranks);
      DataLoader loader(options);
      for (int64_t i = 0; i < batches; ++i) loader.next();
      test::wait_for_all(ranks);  // neither tokenises for the other what no rank asks for
    });
  });
  const double read = static_cast<double>(batches * 2 * kSeqLen * kRows);
  return {read / seconds, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / read * 1e6};
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("hyperion_data_benchmark_{}", ::getpid());
  fs::create_directories(folder);
  Encode encode = [](std::string_view text) {
    std::vector<int32_t> tokens(text.begin(), text.end());
    tokens.push_back(0);
    return tokens;
  };
  uint64_t vocab_size = 256;
  std::shared_ptr<Tokenizer> tokenizer;
  if (argc > 1) {
    tokenizer = Tokenizer::load(argv[1]);
    vocab_size = static_cast<uint64_t>(tokenizer->vocab_size());
    encode = [&](std::string_view text) { return tokenizer->encode(text, kBosAndEos); };
  }
  const std::string corpus = argc > 2 ? read_file(argv[2]) : generate_corpus(size_t{32} << 20);
  write_file_atomic(folder / "text.jsonl", corpus);
  write_gzip(folder / "text.jsonl.gz", corpus);

  std::vector<std::pair<std::string, double>> results;
  JsonLines lines(folder / "text.jsonl");
  std::vector<std::string> texts;
  const double parse = seconds_of([&] {
    for (uint64_t i = 0, n = *lines.open_block(0); i < n; ++i) texts.emplace_back(lines.text(i));
  });
  std::vector<std::vector<int32_t>> documents;
  const double tokenise = seconds_of([&] {
    for (const std::string& text : texts) documents.push_back(encode(text));
  });
  TokenShardWriter writer(folder / "shard", vocab_size, "", "");
  uint64_t tokens = 0;
  for (const auto& document : documents) {
    writer.add(std::vector<int64_t>(document.begin(), document.end()));
    tokens += document.size();
  }
  writer.finish();
  results.emplace_back("JSON parsing alone", static_cast<double>(tokens) / parse);
  results.emplace_back("tokenizer alone, one thread", static_cast<double>(tokens) / tokenise);
  results.emplace_back("loader, text", loader_rate(folder / "text.jsonl", encode, 1));
  results.emplace_back("loader, text.gz", loader_rate(folder / "text.jsonl.gz", encode, 1));
  std::vector<std::string> notes;
  for (const bool together : {false, true}) {
    const PairRate pair = pair_rate(folder / "text.jsonl", encode, static_cast<int64_t>(tokens), together);
    const std::string name =
        together ? "loader, text, 2 ranks together" : "loader, text, 2 ranks, each alone";
    results.emplace_back(name, pair.rate);
    notes.push_back(fmt::format("{}: {:.3f} processor seconds per million tokens", name, pair.processor));
  }
  results.emplace_back("loader, token shard, global stream at 64 ranks",
                       loader_rate(folder / "shard", encode, 64));
  fs::remove_all(folder);

  fmt::print("{} bytes of JSON lines, {} documents, {} tokens\n", corpus.size(), documents.size(), tokens);
  std::string json;
  for (const auto& [name, rate] : results) {
    fmt::print("{:<50}{:>10.2f} M tokens/s\n", name, rate / 1e6);
    json += fmt::format("{}\"{}\": {:.0f}", json.empty() ? "" : ", ", name, rate);
  }
  for (const std::string& note : notes) fmt::print("{}\n", note);
  if (argc > 3) write_file_atomic(argv[3], "{" + json + "}\n");
}
