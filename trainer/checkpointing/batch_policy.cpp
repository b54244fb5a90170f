#include "trainer/checkpointing/batch_policy.h"

#include <fmt/format.h>

#include "base/counted.h"
#include "trainer/config/fit_ranks.h"

namespace hyperion::checkpointing {

bool keeps_batch(const config::JobConfig& config, const StepBatch& saved, const StepBatch& now) {
  return config.training.global_batch_size == -1 && config.training.global_batch_ramp.empty() &&
         saved.ranks != 0 && saved.ranks != now.ranks && saved.sequences != now.sequences &&
         batch_obstacle(config, saved.sequences, now.ranks).empty();
}

std::string describe_kept_batch(const config::JobConfig& config, const StepBatch& saved, int64_t ranks) {
  const auto& t = config.training;
  return fmt::format(
      "training.global_batch_size: keeping {} ({} tokens per step) from the checkpoint of {}: {} here, each "
      "with {} of {}; set training.global_batch_size for another batch",
      counted(saved.sequences, "sequence"), format_count(static_cast<uint64_t>(saved.sequences * t.seq_len)),
      counted(saved.ranks, "data-parallel rank"), ranks,
      counted(saved.sequences / (t.local_batch_size * ranks), "microbatch", "microbatches"),
      counted(t.local_batch_size, "sequence"));
}

std::string batch_obstacle(const config::JobConfig& config, int64_t sequences, int64_t ranks) {
  const int64_t local = config.training.local_batch_size;
  if (sequences % (local * ranks) == 0) return "";
  const std::string ways = config::ways_to_batch(config, ranks, sequences);
  return fmt::format("{} of training.local_batch_size = {} cannot make {}{}",
                     counted(ranks, "data-parallel rank"), local, counted(sequences, "sequence"),
                     ways.empty() ? "" : fmt::format(": {} can", ways));
}

}  // namespace hyperion::checkpointing
