#include "data/token_formats.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "data/megatron.h"
#include "data/raw_tokens.h"
#include "data/token_shards.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kSampledFiles = 16;

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool has_megatron_index(const fs::path& folder) {
  return std::ranges::any_of(list_folder(folder.empty() ? "." : folder),
                             [](const fs::path& entry) { return entry.extension() == ".idx"; });
}

// Files and sources of one format.
struct FormatSummary {
  size_t files = 0;
  std::string types;  // "uint16", "uint16 and int32"
  TokenSample sample;
};

const std::map<CorpusFormat, const char*> kNames = {{CorpusFormat::kMegatron, "Megatron"},
                                                    {CorpusFormat::kDatatrove, "datatrove"},
                                                    {CorpusFormat::kNumpy, ".npy"},
                                                    {CorpusFormat::kLlmC, "llm.c"}};

}  // namespace

std::optional<std::pair<fs::path, CorpusFormat>> token_file_of(const fs::path& path, Named named) {
  const std::string extension = path.extension().string();
  if (!is_file(path)) return std::nullopt;
  if (extension == ".idx") {
    const fs::path tokens = fs::path(path).replace_extension(".bin");
    if (is_file(tokens)) return {{tokens, CorpusFormat::kMegatron}};
    if (begins_with(InputFile(path), "MMIDIDX"))
      throw_data("{}: is an index of Megatron-LM, but {} is not next to it: copy that too", path.string(),
                 tokens.filename().string());
  } else if (extension == ".bin") {
    if (is_file(megatron_index(path))) return {{path, CorpusFormat::kMegatron}};
    const InputFile file(path);
    if (begins_as_llm_c(file)) return {{path, CorpusFormat::kLlmC}};
    const bool wanted =
        named == Named::kByUser ? !begins_with(file, "{") : has_megatron_index(path.parent_path());
    if (wanted)
      throw_data("{}: {} is not next to it, and it does not begin as a file of llm.c: copy the index too{}",
                 path.string(), megatron_index(path).filename().string(),
                 named == Named::kByUser ? ", or name bare tokens (nanoGPT's) X.npy" : "");
  } else if (extension == ".ds") {
    if (!is_file(datatrove_index(path)))
      throw_data("{}: {} is not next to it: copy that too", path.string(),
                 datatrove_index(path).filename().string());
    return {{path, CorpusFormat::kDatatrove}};
  } else if (extension == ".npy") {
    if (named == Named::kByUser || !begins_as_numpy(InputFile(path))) return {{path, CorpusFormat::kNumpy}};
  }
  return std::nullopt;
}

fs::path token_index_of(const CorpusFile& file) {
  if (file.format == CorpusFormat::kMegatron) return megatron_index(file.path);
  if (file.format == CorpusFormat::kDatatrove) return datatrove_index(file.path);
  return {};
}

std::unique_ptr<TokenFileSource> open_tokens(const CorpusFile& file) {
  switch (file.format) {
    case CorpusFormat::kTokenShard:
      return std::make_unique<ShardSource>(file.path);
    case CorpusFormat::kMegatron:
      return std::make_unique<MegatronSource>(file.path, file.facts);
    case CorpusFormat::kDatatrove:
      return std::make_unique<DatatroveSource>(file.path, file.facts);
    case CorpusFormat::kNumpy:
      return std::make_unique<NumpySource>(InputFile(file.path), file.facts);
    case CorpusFormat::kLlmC:
      return std::make_unique<LlmCSource>(InputFile(file.path), file.facts);
    default:
      throw_bug("{}: holds no tokens", file.path.string());
  }
}

void check_token_files(std::span<const CorpusFile> files, const TokenFacts& facts, const std::string& key) {
  std::map<CorpusFormat, FormatSummary> formats;
  const auto n = static_cast<size_t>(
      std::ranges::count_if(files, [](const CorpusFile& file) { return kNames.contains(file.format); }));
  // Files from one that is sampled to the next.
  const size_t between = std::max<size_t>((n + kSampledFiles - 1) / kSampledFiles, 1);
  for (size_t at = 0; const CorpusFile& file : files) {
    if (!kNames.contains(file.format)) continue;
    const auto source = open_tokens(file);
    FormatSummary& format = formats[file.format];
    ++format.files;
    if (at++ % between != 0) continue;
    const std::string type = name_of(source->tokens().type);
    if (format.types.find(type) == format.types.npos)
      format.types += (format.types.empty() ? "" : " and ") + type;
    const TokenSample sample = source->sample(facts.eos);
    format.sample.tokens += sample.tokens;
    format.sample.largest = std::max(format.sample.largest, sample.largest);
    format.sample.documents += sample.documents;
    format.sample.with_eos += sample.with_eos;
  }
  for (const auto& [format, summary] : formats) {
    const TokenSample& sample = summary.sample;
    const std::string name = fmt::format("{}: {}", key, kNames.at(format));
    log_info(
        "{} token files: {}, {}; in a sample of {} tokens the largest is {} (vocabulary: tokenizer {}, model "
        "{}), and {} of {} documents end with EOS",
        name, counted(summary.files, "file"), summary.types, sample.tokens, sample.largest,
        facts.tokenizer_vocab_size, facts.vocab_size, sample.with_eos, sample.documents);
    if (facts.tokenizer_vocab_size > 0 && sample.largest >= facts.tokenizer_vocab_size)
      log_warning(
          "{} token files: token {} is outside of the tokenizer's vocabulary of {}: they were made with "
          "another tokenizer",
          name, sample.largest, facts.tokenizer_vocab_size);
    if (format != CorpusFormat::kLlmC && sample.documents > 0 && sample.with_eos == 0)
      log_warning(
          "{} token files: no document of the sample ends with the tokenizer's EOS{}: documents follow each "
          "other with no mark between them, or the files were made with another tokenizer{}",
          name, facts.eos ? fmt::format(" ({})", *facts.eos) : "",
          format == CorpusFormat::kMegatron ? " (Megatron's preprocess_data.py adds it with --append-eod)"
                                            : "");
  }
}

}  // namespace hyperion::data
