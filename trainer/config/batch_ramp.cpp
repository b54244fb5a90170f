#include "trainer/config/batch_ramp.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/counted.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

BatchSchedule::BatchSchedule(const JobConfig::Training& training, int64_t data_parallel_degree,
                             TrainedSoFar trained)
    : seq_len_(training.seq_len),
      microbatch_(training.local_batch_size * data_parallel_degree),
      trained_(trained.steps) {
  const BatchRamp& ramp = training.global_batch_ramp;
  if (ramp.empty()) {
    stages_.push_back({trained_ + 1, global_batch_of(training, data_parallel_degree)});
    return;
  }
  const bool in_tokens = training.global_batch_ramp_unit == RampUnit::kTokens;
  int64_t tokens = trained.tokens;  // before the last stage's first step
  for (const auto& [begin, sequences] : ramp) {
    int64_t first = trained_ + 1;
    if (!in_tokens) {
      first = std::max(first, begin + 1);
    } else if (!stages_.empty() && begin > tokens) {
      const BatchStage& before = stages_.back();
      const int64_t of_step = before.sequences * seq_len_, steps = (begin - tokens + of_step - 1) / of_step;
      first = before.first_step + steps;
      tokens += steps * of_step;
    } else if (!stages_.empty()) {
      first = stages_.back().first_step;
    }
    if (!stages_.empty() && stages_.back().first_step == first) stages_.pop_back();  // it has no step
    stages_.push_back({first, sequences});
  }
}

int64_t BatchSchedule::sequences_of(int64_t step) const {
  const auto after = std::ranges::upper_bound(stages_, step, {}, &BatchStage::first_step);
  return after == stages_.begin() ? stages_.front().sequences : std::prev(after)->sequences;
}

int64_t BatchSchedule::sequences_up_to(int64_t step) const {
  int64_t sum = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const int64_t end = i + 1 < stages_.size() ? std::min(step + 1, stages_[i + 1].first_step) : step + 1;
    sum += std::max<int64_t>(end - stages_[i].first_step, 0) * stages_[i].sequences;
  }
  return sum;
}

int64_t BatchSchedule::step_of_sequence(int64_t n) const {
  size_t stage = stages_.size() - 1;
  while (stage > 0 && sequences_up_to(stages_[stage].first_step - 1) >= n) --stage;
  const auto& [first, sequences] = stages_[stage];
  return first + (n - 1 - sequences_up_to(first - 1)) / sequences;
}

std::string BatchSchedule::describe() const {
  std::string text;
  for (const auto& [first, sequences] : stages_)
    text += fmt::format(
        "{}{} from step {}", text.empty() ? "" : ", ",
        text.empty() ? counted(sequences, "sequence") : format_count(static_cast<uint64_t>(sequences)),
        format_count(static_cast<uint64_t>(first)));
  return text;
}

std::string describe_batch(const JobConfig::Training& training, int64_t ranks) {
  const auto text_of = [](int64_t number) { return format_count(static_cast<uint64_t>(number)); };
  const std::string of_ranks =
      fmt::format("{} x {} sequences x {}{}", counted(ranks, "data-parallel rank"), training.local_batch_size,
                  training.global_batch_ramp.empty() ? "" : "up to ",
                  counted(microbatches_of(training, ranks), "microbatch", "microbatches"));
  const BatchSchedule batches(training, ranks);
  if (training.global_batch_ramp.empty())
    return fmt::format("{} sequences of {} per step: {} tokens ({})", batches.sequences_of(1),
                       training.seq_len, text_of(batches.tokens_of(1)), of_ranks);
  return fmt::format("a ramp of {}, of {} tokens each: {} tokens in {} ({})", batches.describe(),
                     training.seq_len, text_of(batches.sequences_up_to(training.steps) * training.seq_len),
                     counted(training.steps, "step"), of_ranks);
}

int64_t common_batch_of(const JobConfig::Training& training) {
  if (training.global_batch_ramp.empty()) return training.global_batch_size;
  int64_t common = 0;
  for (const auto& [begin, sequences] : training.global_batch_ramp) common = std::gcd(common, sequences);
  return common;
}

}  // namespace hyperion::config
