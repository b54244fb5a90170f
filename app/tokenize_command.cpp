#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

#include "app/commands.h"
#include "base/clock.h"
#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/shuffle_plan.h"
#include "data/sources.h"
#include "data/token_formats.h"
#include "data/token_shards.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/config/input_path.h"

namespace hyperion::app {
namespace {

constexpr uint64_t kPieceTokens = uint64_t{1} << 20;
constexpr double kSecondsBetweenRecords = 1;  // of finished files, which wait for the disk

std::vector<data::CorpusFile> find_inputs(const std::vector<std::string>& inputs) {
  std::vector<data::CorpusFile> files;
  for (const std::string& input : inputs) {
    for (data::CorpusFile& file : data::find_corpus_and_log(input, "INPUT")) {
      if (file.format == data::CorpusFormat::kTokenShard)
        throw_config("{}: is a token shard already, expected text or token files", file.path.string());
      files.push_back(std::move(file));
    }
  }
  return files;
}

// Describes what is written, as ShardOutput::job.
std::string describe_job(const std::vector<data::CorpusFile>& files, const data::Tokenizer& tokenizer,
                         const CommandLine::Tokenize& options) {
  const uint64_t hash = data::corpus_fingerprint(files);
  return fmt::format(
      "{:016x}",
      hash_text(fmt::format("{} {} {}", tokenizer.hash(), options.format, options.text_field), hash));
}

// Returns the number of documents without text, which are left out.
uint64_t add_documents(const std::vector<data::CorpusFile>& files, const data::Encode& encode,
                       const data::TextField& field, data::TokenShardWriter& writer) {
  uint64_t bytes = 0;
  for (const data::CorpusFile& file : files) bytes += file.size;
  Progress progress("tokenize", bytes, "B");
  uint64_t done = 0, inputs = 0, empty = 0;
  std::vector<int64_t> tokens;
  std::optional<std::chrono::steady_clock::time_point> recorded;
  for (const data::CorpusFile& file : files) {
    done += file.size;
    if (inputs++ < writer.recorded()) continue;
    const auto source = data::open_source(file, encode, field);
    for (uint64_t block = 0; const std::optional<uint64_t> documents = source->open_block(block); ++block) {
      for (uint64_t i = 0; i < *documents; ++i) {
        const uint64_t length = source->open(i);
        for (uint64_t offset = 0; offset < length; offset += tokens.size()) {
          tokens.resize(std::min(length - offset, kPieceTokens));
          source->copy(offset, tokens);
          writer.append(tokens);
        }
        if (length > 0)
          writer.end_document();
        else
          ++empty;
      }
      const std::optional<uint64_t> blocks = source->blocks();
      const uint64_t bytes_after =
          blocks ? file.size - data::scaled(file.size, block + 1, *blocks) : source->bytes_after_block();
      progress.update(done - bytes_after);
    }
    if (recorded && seconds_since(*recorded) < kSecondsBetweenRecords) continue;
    writer.record(inputs);
    recorded = std::chrono::steady_clock::now();
  }
  return empty;
}

}  // namespace

ExitCode tokenize_command(const CommandLine::Tokenize& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string tokenizer = config::resolve_input(options.tokenizer, config::install_root()).string();
  const auto loaded = data::Tokenizer::load(tokenizer);
  data::warn_of_missing_tokens(*loaded, tokenizer);
  const data::TextField field = {options.text_field, "--text-field"};
  std::vector<data::CorpusFile> files = find_inputs(options.inputs);
  const auto vocab_size = static_cast<uint64_t>(loaded->vocab_size());
  const data::TokenFacts facts = {vocab_size, vocab_size, loaded->eos_id()};
  for (data::CorpusFile& file : files) {
    data::sample_text(file, field);
    file.facts = facts;
  }
  data::check_token_files(files, facts, "INPUT");
  const bool megatron = options.format == "megatron";
  data::TokenShardWriter writer(options.out, vocab_size, data::tokenizer_fingerprint(tokenizer), tokenizer,
                                {megatron, describe_job(files, *loaded, options)});
  if (const uint64_t recorded = writer.recorded(); recorded > 0)
    log_info("Goes on with {}.partial, which holds {} of {}: {}, {}", options.out, recorded,
             counted(files.size(), "file"), counted(writer.header().documents, "document"),
             counted(writer.header().tokens, "token"));
  const uint64_t empty = add_documents(
      files, [&](std::string_view text) { return loaded->encode(text, data::kBosAndEos); }, field, writer);
  const data::ShardHeader header = writer.finish();
  const double seconds = seconds_since(begin);
  if (empty > 0)
    log_info("{} had no text and {} left out", counted(empty, "document"), empty == 1 ? "was" : "were");
  log_info(
      "Tokenised {} files, {} documents, {} tokens into {} in {:.1f} s ({:.0f} tokens/s): set "
      "training.dataset_path to it",
      files.size(), header.documents, header.tokens, options.out, seconds,
      static_cast<double>(header.tokens) / seconds);
  return ExitCode::kOk;
}

}  // namespace hyperion::app
