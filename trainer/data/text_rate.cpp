#include "trainer/data/text_rate.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/counted.h"
#include "data/sources.h"
#include "trainer/data/job_data.h"

namespace hyperion::trainer {
namespace {

constexpr size_t kTimedFiles = 16;
constexpr size_t kTimedBytes = size_t{64} << 10;  // of a document
constexpr double kMeasuredSeconds = 0.1;
constexpr double kDependable = 0.8;  // share of the measured rate: the thread also reads and cuts batches

}  // namespace

std::vector<std::string> sample_of_text(const config::JobConfig& config) {
  std::vector<std::string> documents;
  const std::vector<data::SourceOptions> sources = training_data(config);
  const size_t of_each = std::max<size_t>(kTimedFiles / sources.size(), 1);
  for (const data::SourceOptions& source : sources) {
    const size_t before = documents.size();
    for (const data::CorpusFile& file : data::find_corpus(source.path, source.key)) {
      if (documents.size() == before + of_each) break;
      std::optional<std::string> text = data::sample_text(
          file, source.text_field, config.training.on_bad_document == config::OnBadDocument::kSkip);
      if (!text || text->empty()) continue;
      documents.push_back(*std::move(text));
      documents.back().resize(std::min(documents.back().size(), kTimedBytes));
    }
  }
  return documents;
}

double tokenizer_rate(const data::Tokenizer& tokenizer, const std::vector<std::string>& documents) {
  const auto pass = [&] {
    size_t tokens = 0;
    for (const std::string& document : documents)
      tokens += tokenizer.encode(document, data::kBosAndEos).size();
    return tokens;
  };
  pass();  // fills the caches
  const auto begin = std::chrono::steady_clock::now();
  size_t tokens = 0;
  do tokens += pass();
  while (seconds_since(begin) < kMeasuredSeconds);
  return static_cast<double>(tokens) / seconds_since(begin);
}

bool TextRate::suffices() const {
  return needed() <= kDependable * available();
}

std::string TextRate::describe() const {
  const auto readable = [](double rate) { return format_count(static_cast<uint64_t>(rate)); };
  const std::string by =
      threads == 1 ? "one thread on each rank" : fmt::format("the {} threads of each node", threads);
  if (suffices())
    return fmt::format(
        "Text is tokenised by {}, for all {} that read different data: up to {} tokens/s, of which about {} "
        "are needed",
        by, counted(ranks, "rank"), readable(available()), readable(needed()));
  return fmt::format(
      "training.dataset_path: text is tokenised by {}, for all {} that read different data: at most {} "
      "tokens/s here, and they would use about {} tokens/s; run `hyperion tokenize` once and train from its "
      "token shards",
      by, counted(ranks, "rank"), readable(available()), readable(needed()));
}

}  // namespace hyperion::trainer
