// Says how long sources last, which of them end when, and what has become of them in a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "trainer/config/batch_ramp.h"
#include "trainer/data/job_data.h"

namespace hyperion::trainer {

struct SourceSize {
  uint64_t files = 0, bytes = 0;
  std::optional<double> documents{}, tokens{};  // of one epoch; none: not known
  bool estimated = false;                       // from a sample of its text
};
// Counts the tokens of token files, and estimates those of text from documents of some files.
SourceSize measure_source(const data::SourceOptions& source, const std::vector<data::CorpusFile>& files,
                          const data::Tokenizer& tokenizer);

// A source for plan_sources().
struct SourceFacts {
  double weight = 1;
  double tokens = 0;    // of one epoch; 0: not known, and it never ends
  double consumed = 0;  // tokens, before the plan begins
  std::optional<uint64_t> max_epochs{};
};
struct SourcePlan {
  double epochs = 0;                  // that are read when the job is done, earlier ones included
  std::optional<int64_t> end_step{};  // the first step without it, or that the job cannot make
};
// Plans steps first_step to last_step of `step_tokens` tokens each. Pure.
std::vector<SourcePlan> plan_sources(const std::vector<SourceFacts>& sources, double step_tokens,
                                     int64_t first_step, int64_t last_step, bool stops_at_end);

// "3 files, 1.50 GiB, about 1,234 documents, about 345,678 tokens (from a sample)".
std::string describe_size(const SourceSize& size);

// "PATH: 3 files, 1,234 bytes", and how many names were left out.
std::string describe_files(const data::SourceOptions& source);

// The part of a job that plan_sources() needs.
struct SourceSteps {
  const config::BatchSchedule& batches;  // behind the steps that are done
  int64_t first_step = 1;
};
// The facts of each of training_data(), of which `sizes` are; `state` says what they have consumed.
std::vector<SourcePlan> plan_of_job(const config::JobConfig& config,
                                    const std::vector<data::SourceOptions>& sets,
                                    const std::vector<SourceSize>& sizes, const data::LoaderState& state,
                                    const SourceSteps& steps);

// Returns the name of each source and a text: its files, size, weight, epochs that the job makes of it, and
// the step at which it ends. Reads a sample of text.
std::vector<std::pair<std::string, std::string>> source_table(const config::JobConfig& config,
                                                              const data::DataLoader& loader,
                                                              const data::Tokenizer& tokenizer,
                                                              const SourceSteps& steps);

// Returns a sentence for each source with max_epochs: the step at which it ends. Reads a sample of text.
// Nothing without max_epochs.
std::vector<std::string> explain_source_ends(const config::JobConfig& config, const data::DataLoader& loader,
                                             const data::Tokenizer& tokenizer, const SourceSteps& steps);

// Returns a sentence for each source, or the only data, that has begun another epoch or has ended in `step`.
std::vector<std::string> source_events(const data::LoaderState& before, const data::LoaderState& after,
                                       int64_t step);

// Tags of the sources: sources/NAME/tokens, by all ranks, and sources/NAME/epoch, the number of those read.
std::vector<std::pair<std::string, double>> source_metrics(const data::LoaderState& state);

}  // namespace hyperion::trainer
