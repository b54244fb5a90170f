#include "trainer/data/source_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/counted.h"
#include "base/error.h"
#include "data/token_formats.h"

namespace hyperion::trainer {
namespace {

constexpr size_t kSampledFiles = 4;
constexpr uint64_t kSampledBlocks = 2;              // of a file
constexpr uint64_t kSampledDocuments = 200;         // of a block
constexpr size_t kSampledBytes = size_t{64} << 10;  // of a document

// TextSample extrapolates a sample of a text file to the complete file.
struct TextSample {
  double documents = 0, tokens = 0;
};

// Adds the documents of the open block, and their tokens by those of some of them.
void add_block(data::TextFile& text, uint64_t documents, const data::Tokenizer& tokenizer, TextSample& sum) {
  const uint64_t stride = std::max<uint64_t>(documents / kSampledDocuments, 1);
  double tokens = 0, sampled = 0;
  for (uint64_t i = 0; i < documents; i += stride) {
    try {
      const std::string_view document = text.text(i), part = document.substr(0, kSampledBytes);
      if (!part.empty())
        tokens += static_cast<double>(tokenizer.encode(part, data::kBosAndEos).size()) *
                  static_cast<double>(document.size()) / static_cast<double>(part.size());
      ++sampled;
    } catch (const data::BadDocument&) {  // training decides about it
    }
  }
  if (sampled == 0) return;
  sum.documents += static_cast<double>(documents);
  sum.tokens += tokens / sampled * static_cast<double>(documents);
}

TextSample sample_file(const data::CorpusFile& file, const data::SourceOptions& source,
                       const data::Tokenizer& tokenizer) {
  const auto text = data::open_text(file, source.text_field);
  TextSample sum;
  double scale = 1;  // blocks of the file by those that are sampled
  if (const std::optional<uint64_t> blocks = text->blocks()) {
    const uint64_t count = std::min(*blocks, kSampledBlocks);
    for (uint64_t i = 0; i < count; ++i)
      add_block(*text, text->open_block((2 * i + 1) * *blocks / (2 * count)).value_or(0), tokenizer, sum);
    if (count > 0) scale = static_cast<double>(*blocks) / static_cast<double>(count);
  } else {
    add_block(*text, text->open_block(0).value_or(0), tokenizer, sum);
    const auto size = static_cast<double>(file.size);
    scale = size / std::max(size - static_cast<double>(text->bytes_after_block()), 1.0);
  }
  return {sum.documents * scale, sum.tokens * scale};
}

std::string about(double number, bool estimated, const char* noun) {
  return fmt::format("{}{}", estimated ? "about " : "",
                     counted(static_cast<uint64_t>(std::llround(number)), noun));
}

}  // namespace

SourceSize measure_source(const data::SourceOptions& source, const std::vector<data::CorpusFile>& files,
                          const data::Tokenizer& tokenizer) {
  SourceSize size{.files = files.size()};
  double documents = 0, tokens = 0, bytes_of_texts = 0;
  bool documents_known = true;
  std::vector<const data::CorpusFile*> texts;
  for (const data::CorpusFile& file : files) {
    size.bytes += file.size;
    if (data::holds_text(file.format)) {
      texts.push_back(&file);
      bytes_of_texts += static_cast<double>(file.size);
      continue;
    }
    const auto source = data::open_tokens(file);
    tokens += static_cast<double>(source->tokens().count);
    documents_known &= source->blocks() == 1;  // else their ends are found while reading
    if (documents_known) documents += static_cast<double>(source->open_block(0).value_or(0));
  }
  TextSample sampled;
  double sampled_bytes = 0;
  const size_t count = std::min(kSampledFiles, texts.size());
  for (size_t i = 0; i < count; ++i) {
    const data::CorpusFile& file = *texts[i * texts.size() / count];
    const TextSample one = sample_file(file, source, tokenizer);
    sampled.documents += one.documents;
    sampled.tokens += one.tokens;
    sampled_bytes += static_cast<double>(file.size);
  }
  if (sampled_bytes > 0) {
    size.estimated = true;
    documents += sampled.documents * bytes_of_texts / sampled_bytes;
    tokens += sampled.tokens * bytes_of_texts / sampled_bytes;
  }
  if (tokens > 0) size.tokens = tokens;
  if (documents_known && tokens > 0) size.documents = documents;
  return size;
}

std::vector<SourcePlan> plan_sources(const std::vector<SourceFacts>& sources, double step_tokens,
                                     int64_t first_step, int64_t last_step, bool stops_at_end) {
  std::vector<SourcePlan> plans(sources.size());
  std::vector<double> consumed;
  for (const SourceFacts& source : sources) consumed.push_back(source.consumed);
  double now = 0, end = std::max(static_cast<double>(last_step - first_step + 1), 0.0);  // steps from here on
  while (now < end) {
    double weights = 0;
    for (size_t i = 0; i < sources.size(); ++i)
      if (!plans[i].end_step) weights += sources[i].weight;
    if (weights == 0) break;
    // Until the first source ends.
    double duration = end - now;
    size_t first = sources.size();
    for (size_t i = 0; i < sources.size(); ++i) {
      const SourceFacts& source = sources[i];
      if (plans[i].end_step || !source.max_epochs || source.tokens == 0) continue;
      const double left =
          std::max(static_cast<double>(*source.max_epochs) * source.tokens - consumed[i], 0.0);
      const double steps = left / (step_tokens * source.weight / weights);
      if (steps >= duration) continue;
      duration = steps;
      first = i;
    }
    for (size_t i = 0; i < sources.size(); ++i)
      if (!plans[i].end_step) consumed[i] += duration * step_tokens * sources[i].weight / weights;
    now += duration;
    if (first == sources.size()) break;
    plans[first].end_step = first_step + static_cast<int64_t>(now);
    if (stops_at_end) break;
  }
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i].tokens > 0) plans[i].epochs = consumed[i] / sources[i].tokens;
  return plans;
}

std::string describe_size(const SourceSize& size) {
  std::string text = fmt::format("{}, {}", counted(size.files, "file"), format_bytes(size.bytes));
  if (size.documents) text += ", " + about(*size.documents, size.estimated, "document");
  text += size.tokens ? ", " + about(*size.tokens, size.estimated, "token") : ", tokens not known";
  return size.estimated ? text + " (from a sample)" : text;
}

std::vector<SourcePlan> plan_of_job(const config::JobConfig& config,
                                    const std::vector<data::SourceOptions>& sets,
                                    const std::vector<SourceSize>& sizes, const data::LoaderState& state,
                                    const SourceSteps& steps) {
  const auto& training = config.training;
  std::vector<SourceFacts> facts;
  for (size_t i = 0; i < sets.size(); ++i)
    facts.push_back({sets[i].weight, sizes[i].tokens.value_or(0),
                     static_cast<double>(state.sources[i].tokens), sets[i].max_epochs});
  const bool stops = training.on_source_end == config::OnSourceEnd::kStop;
  const config::BatchSchedule& batches = steps.batches;
  if (batches.stages().size() == 1)
    return plan_sources(facts, static_cast<double>(batches.tokens_of(steps.first_step)), steps.first_step,
                        training.steps, stops);
  // With a ramp, steps of one sequence.
  std::vector<SourcePlan> plans = plan_sources(facts, static_cast<double>(training.seq_len), 1,
                                               batches.sequences_up_to(training.steps), stops);
  for (SourcePlan& plan : plans)
    if (plan.end_step) plan.end_step = batches.step_of_sequence(*plan.end_step);
  return plans;
}

namespace {

struct MeasuredSources {
  std::vector<data::SourceOptions> sets;
  std::vector<SourceSize> sizes{};
  std::vector<SourcePlan> plans{};
};

MeasuredSources measure_sources(const config::JobConfig& config, const data::DataLoader& loader,
                                const data::Tokenizer& tokenizer, const SourceSteps& steps) {
  MeasuredSources sources{training_data(config)};
  const auto files = loader.files();
  for (size_t i = 0; i < sources.sets.size(); ++i)
    sources.sizes.push_back(measure_source(sources.sets[i], files[i], tokenizer));
  sources.plans = plan_of_job(config, sources.sets, sources.sizes, loader.state(), steps);
  return sources;
}

// Returns what happens at the end of a source.
const char* consequence(const config::JobConfig& config) {
  return config.training.on_source_end == config::OnSourceEnd::kStop
             ? "the job ends there"
             : "the other sources go on by their weights";
}

}  // namespace

std::string describe_files(const data::SourceOptions& source) {
  const std::string& path = source.path;
  std::vector<std::filesystem::path> hidden;
  const std::vector<data::CorpusFile> files = data::find_corpus(path, source.key, &hidden);
  uint64_t bytes = 0;
  for (const data::CorpusFile& file : files) bytes += file.size;
  const std::string left_out =
      hidden.empty() ? ""
                     : fmt::format("; left out: {} beginning with a dot", counted(hidden.size(), "name"));
  return fmt::format("{}: {}, {}{}", path, counted(files.size(), "file"), counted(bytes, "byte"), left_out);
}

std::vector<std::pair<std::string, std::string>> source_table(const config::JobConfig& config,
                                                              const data::DataLoader& loader,
                                                              const data::Tokenizer& tokenizer,
                                                              const SourceSteps& steps) {
  const auto [sets, sizes, plans] = measure_sources(config, loader, tokenizer, steps);
  std::vector<std::pair<std::string, std::string>> rows;
  for (size_t i = 0; i < sets.size(); ++i) {
    const double share = static_cast<double>(loader.state().sources.at(i).share) /
                         static_cast<double>(data::SourceMix::kWhole);
    const char* const nearly = sizes[i].estimated ? "about " : "";
    std::string text = fmt::format("{}: {}; weight {:.4g}, {:.3g} % of the sequences", sets[i].path,
                                   describe_size(sizes[i]), sets[i].weight, 100 * share);
    if (sizes[i].tokens)
      text += fmt::format(": {}{:.2f} epochs in {}", nearly, plans[i].epochs,
                          counted(config.training.steps, "step"));
    if (plans[i].end_step)
      text += fmt::format("; its {} end at {}step {}: {}", counted(*sets[i].max_epochs, "epoch"), nearly,
                          format_count(static_cast<uint64_t>(*plans[i].end_step)), consequence(config));
    rows.emplace_back(sets[i].name, text);
  }
  return rows;
}

std::vector<std::string> explain_source_ends(const config::JobConfig& config, const data::DataLoader& loader,
                                             const data::Tokenizer& tokenizer, const SourceSteps& steps) {
  const auto& listed = config.training.sources;
  if (std::ranges::none_of(listed, [](const auto& source) { return source.max_epochs.has_value(); }))
    return {};
  const auto [sets, sizes, plans] = measure_sources(config, loader, tokenizer, steps);
  std::vector<std::string> lines;
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!sets[i].max_epochs) continue;
    const std::string epochs = counted(*sets[i].max_epochs, "epoch");
    const char* const nearly = sizes[i].estimated ? "about " : "";
    std::string line = fmt::format("Source {}: ", sets[i].name);
    if (!sizes[i].tokens)
      line += fmt::format("when its {} end is not known", epochs);
    else if (plans[i].end_step)
      line += fmt::format("its {} end at {}step {}: {} (training.on_source_end = \"{}\")", epochs, nearly,
                          format_count(static_cast<uint64_t>(*plans[i].end_step)), consequence(config),
                          text_of(config.training.on_source_end));
    else
      line +=
          fmt::format("{}{:.2f} of its {} are read by the end of the job", nearly, plans[i].epochs, epochs);
    lines.push_back(line + (sizes[i].estimated ? "; tokens are estimated from a sample of its text" : ""));
  }
  return lines;
}

std::vector<std::string> source_events(const data::LoaderState& before, const data::LoaderState& after,
                                       int64_t step) {
  std::vector<std::string> events;
  for (size_t i = 0; i < after.sources.size(); ++i) {
    const data::SourceState &was = before.sources.at(i), &is = after.sources[i];
    if (is.share == 0 && was.share != 0)
      events.push_back(fmt::format("The source {} has ended in step {} after {}: its max_epochs are read",
                                   is.name, step, counted(is.position.epoch, "epoch")));
    else if (is.position.epoch != was.position.epoch)
      events.push_back(
          fmt::format("The {} over in step {}: epoch {}",
                      is.name.empty() ? "training data start" : fmt::format("source {} starts", is.name),
                      step, is.position.epoch + 1));
  }
  return events;
}

std::vector<std::pair<std::string, double>> source_metrics(const data::LoaderState& state) {
  std::vector<std::pair<std::string, double>> metrics;
  for (const data::SourceState& source : state.named_sources()) {
    metrics.emplace_back(fmt::format("sources/{}/tokens", source.name), static_cast<double>(source.tokens));
    metrics.emplace_back(fmt::format("sources/{}/epoch", source.name),
                         static_cast<double>(source.position.epoch));
  }
  return metrics;
}

}  // namespace hyperion::trainer
