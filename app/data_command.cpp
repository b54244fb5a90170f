#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "app/commands.h"
#include "base/counted.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/standard_streams.h"
#include "trainer/config/load.h"
#include "trainer/data/job_data.h"
#include "trainer/data/source_report.h"
#include "trainer/preflight.h"

namespace hyperion::app {
namespace {

constexpr size_t kShownBegin = 400, kShownEnd = 200;  // bytes of a document's part without --full

// The text in lines that are indented by two spaces, shortened in its middle unless `full`.
std::string indented(std::string text, bool full) {
  const auto boundary = [&](size_t at) {  // of a character of UTF-8, at or before `at`
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    return at;
  };
  if (!full && text.size() > 2 * (kShownBegin + kShownEnd)) {
    const size_t begin = boundary(kShownBegin), end = boundary(text.size() - kShownEnd);
    text = fmt::format("{}\n[... {} ...]\n{}", text.substr(0, begin), counted(end - begin, "byte"),
                       text.substr(end));
  }
  std::string lines;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines += "  " + escape_control_bytes(text.substr(at, end - at), "\t") + "\n";
    at = end + 1;
  }
  return lines;
}

std::string describe_part(const data::DocumentSpan& document, size_t tokens) {
  return fmt::format("{}, {}{}", document.place.describe(), counted(tokens, "token"),
                     document.offset == 0 ? "" : fmt::format(" from token {} on", document.offset));
}

void print_sequence(const data::Batch& batch, const std::string& source, const data::Tokenizer& tokenizer,
                    bool full) {
  const std::vector<data::DocumentSpan>& documents = batch.documents.front();
  print_text(fmt::format("\nsequence {}{}{}: {} of {}\n", batch.first_sequence, source.empty() ? "" : " of ",
                         source, counted(static_cast<uint64_t>(batch.seq_len), "token"),
                         counted(documents.size(), "document")));
  for (size_t i = 0; i < documents.size(); ++i) {
    const size_t begin = documents[i].begin;
    const size_t end = i + 1 < documents.size() ? documents[i + 1].begin : batch.tokens.size();
    const std::vector<int32_t> ids(batch.tokens.begin() + static_cast<ptrdiff_t>(begin),
                                   batch.tokens.begin() + static_cast<ptrdiff_t>(end));
    print_text(fmt::format("- {}\n{}", describe_part(documents[i], end - begin),
                           indented(tokenizer.decode(ids), full)));
  }
}

}  // namespace

ExitCode data_command(const CommandLine& line) {
  config::ResolvedConfig resolved = config::load_config(line.config_file, line.overrides);
  for (const std::string& warning : resolved.warnings) log_warning("{}", warning);
  trainer::check_keys(resolved, {});
  config::JobConfig& config = resolved.config;
  const trainer::DataSetup setup = trainer::load_tokenizer(config);
  trainer::check_training_documents(config);
  config.training.local_batch_size = 1;
  const int64_t first = line.data.sequence.value_or(0);
  const auto loader = trainer::training_loader(config, setup,
                                               {.seed = static_cast<uint64_t>(config.debug.seed.value_or(0)),
                                                .vocab_size = setup.tokenizer->vocab_size()});
  if (!config.debug.seed && config.training.shuffle)
    log_warning(
        "debug.seed is not set: a job draws a seed and reads another order than the one of seed 0 here");
  const std::vector<data::SourceOptions> sources = trainer::training_data(config);
  for (size_t i = 0; i < sources.size(); ++i)
    print_text(fmt::format(
        "{}{}: {}\n", sources[i].name.empty() ? "" : sources[i].name + ", ", sources[i].path,
        trainer::describe_size(trainer::measure_source(sources[i], loader->files()[i], *setup.tokenizer))));
  {
    Progress progress("reading the sequences before it", static_cast<uint64_t>(first), "sequences");
    for (int64_t i = 0; i < first; ++i) {
      loader->next();
      progress.update(static_cast<uint64_t>(i) + 1);
    }
  }
  for (int64_t i = 0; i < (line.data.sequence ? 1 : line.data.sequences); ++i) {
    const data::Batch batch = *loader->next();
    const std::string source =
        batch.source_of_row.empty() ? "" : loader->initial_state().sources[batch.source_of_row.front()].name;
    print_sequence(batch, source, *setup.tokenizer, line.data.full);
  }
  return ExitCode::kOk;
}

}  // namespace hyperion::app
