#include "trainer/config/validate_ramp.h"

#include <fmt/format.h>

#include "trainer/config/checks.h"
#include "trainer/config/fit_ranks.h"
#include "trainer/config/mesh_fits.h"

namespace hyperion::config {
namespace {

constexpr const char* kRampKey = "training.global_batch_ramp";
constexpr int64_t kLargestBatch = 1'000'000'000, kLargestBegin = 1'000'000'000'000'000'000;

class RampChecks : ChecksOfConfig {
 public:
  using ChecksOfConfig::ChecksOfConfig;

  // Returns whether the stages mean something.
  bool stages() {
    const BatchRamp& ramp = config_.training.global_batch_ramp;
    refuse_if(config_.training.global_batch_size != -1, kRampKey,
              fmt::format("training.global_batch_size = {} sets the batch of all steps: remove one of both",
                          config_.training.global_batch_size));
    if (ramp.front().first != 0) {
      refuse(kRampKey, fmt::format("the first stage begins at {}: expected 0, the batch of the first step",
                                   ramp.front().first));
      return false;
    }
    for (size_t i = 0; i < ramp.size(); ++i) {
      const auto& [begin, sequences] = ramp[i];
      if (sequences < 1 || sequences > kLargestBatch) {
        refuse(kRampKey, fmt::format("stage [{}, {}]: expected a batch of 1 to 1,000,000,000 sequences",
                                     begin, sequences));
        return false;
      }
      if (i > 0 && (begin <= ramp[i - 1].first || begin > kLargestBegin)) {
        refuse(kRampKey,
               fmt::format("stage [{}, {}] after [{}, {}]: each begins later than the one before it", begin,
                           sequences, ramp[i - 1].first, ramp[i - 1].second));
        return false;
      }
    }
    return true;
  }

  // Names the nearest batches that the ranks can make.
  void batches() {
    if (!run_.world_size || !mesh_fits(config_.parallelism, *run_.world_size)) return;
    const int64_t local = config_.training.local_batch_size,
                  ranks = data_parallel_degree(config_, *run_.world_size);
    for (const auto& [begin, sequences] : config_.training.global_batch_ramp) {
      if (sequences % (local * ranks) == 0) continue;
      const std::string ways = ways_to_batch(config_, ranks, sequences);
      refuse(kRampKey,
             fmt::format("stage [{}, {}]: expected a multiple of {} (local_batch_size {} x {} data-parallel "
                         "ranks), such as {}{}",
                         begin, sequences, local * ranks, local, ranks,
                         listed_or(multiples_near(sequences, local * ranks)),
                         ways.empty() ? "" : fmt::format("; {} can make this batch", ways)));
    }
  }
};

}  // namespace

void check_ramp(const ResolvedConfig& resolved, const RunContext& run, Problems& problems) {
  if (resolved.config.training.global_batch_ramp.empty()) {
    if (resolved.config.training.global_batch_ramp_unit != RampUnit::kSteps)
      problems.add(resolved, "training.global_batch_ramp_unit",
                   "there is no training.global_batch_ramp whose stages it counts");
    return;
  }
  RampChecks checks(resolved, run, problems);
  if (checks.stages()) checks.batches();
}

}  // namespace hyperion::config
