#include <chrono>
#include <optional>
#include <string_view>

#include "app/commands.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/sources.h"
#include "data/token_shards.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/input_path.h"

namespace hyperion::app {
namespace {

std::vector<data::CorpusFile> find_inputs(const std::vector<std::string>& inputs) {
  std::vector<data::CorpusFile> files;
  for (const std::string& input : inputs) {
    for (data::CorpusFile& file : data::find_corpus_and_log(input, "INPUT")) {
      if (file.format == data::CorpusFormat::kTokenShard)
        throw_config("{}: is a token shard already, expected text", file.path.string());
      files.push_back(std::move(file));
    }
  }
  return files;
}

void add_documents(const std::vector<data::CorpusFile>& files, const data::Encode& encode,
                   const data::TextField& field, data::TokenShardWriter& writer) {
  uint64_t bytes = 0;
  for (const data::CorpusFile& file : files) bytes += file.size;
  Progress progress("tokenize", bytes, "B");
  uint64_t done = 0;
  std::vector<int64_t> tokens;
  for (const data::CorpusFile& file : files) {
    const auto source = data::open_source(file, encode, field);
    for (uint64_t block = 0; const std::optional<uint64_t> documents = source->open_block(block); ++block) {
      for (uint64_t i = 0; i < *documents; ++i) {
        tokens.resize(source->open(i));
        source->copy(0, tokens);
        if (!tokens.empty()) writer.add(tokens);
      }
      const std::optional<uint64_t> blocks = source->blocks();
      progress.update(done +
                      (blocks ? file.size * (block + 1) / *blocks : file.size - source->bytes_after_block()));
    }
    done += file.size;
  }
}

}  // namespace

ExitCode tokenize_command(const CommandLine::Tokenize& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string tokenizer = config::resolve_input(options.tokenizer, config::install_root()).string();
  const auto loaded = data::Tokenizer::load(tokenizer);
  data::warn_of_missing_tokens(*loaded, tokenizer);
  const data::TextField field = {options.text_field, "--text-field"};
  const std::vector<data::CorpusFile> files = find_inputs(options.inputs);
  for (const data::CorpusFile& file : files) data::sample_text(file, field);
  data::TokenShardWriter writer(options.out, static_cast<uint64_t>(loaded->vocab_size()),
                                data::tokenizer_fingerprint(tokenizer), tokenizer);
  add_documents(
      files, [&](std::string_view text) { return loaded->encode(text, true, true); }, field, writer);
  const data::ShardHeader header = writer.finish();
  const double seconds = seconds_since(begin);
  log_info(
      "Tokenised {} files, {} documents, {} tokens into {} in {:.1f} s ({:.0f} tokens/s): set "
      "training.dataset_path to it",
      files.size(), header.documents, header.tokens, options.out, seconds,
      static_cast<double>(header.tokens) / seconds);
  return ExitCode::kOk;
}

}  // namespace hyperion::app
