#include "trainer/config/fit_ranks.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/counted.h"
#include "trainer/config/mesh_fits.h"
#include "trainer/config/validate.h"

namespace hyperion::config {
namespace {

constexpr const char *kReplicateKey = "parallelism.data_parallel_replicate_degree",
                     *kShardKey = "parallelism.data_parallel_shard_degree",
                     *kBatchKey = "training.global_batch_size";
constexpr size_t kSmaller = 3, kLarger = 2;  // numbers of ranks that a message names
constexpr int64_t kMaxTried = 1 << 20;       // local batch sizes

// Returns the ranks that share one sequence and its gradient: a data-parallel rank has as many processes.
int64_t ranks_of_sequence(const JobConfig& config) {
  const auto& p = config.parallelism;
  return p.pipeline_parallel_degree * p.context_parallel_degree * p.tensor_parallel_degree;
}

// Returns whether the experts' degrees divide the ranks that hold one copy of a stage.
bool experts_fit(const JobConfig& config, int64_t shard) {
  const auto& p = config.parallelism;
  if (!divides_experts(config)) return true;
  return shard * p.context_parallel_degree * p.tensor_parallel_degree %
             (p.expert_parallel_degree * p.expert_tensor_parallel_degree) ==
         0;
}

// Returns whether the job can have that number of data-parallel ranks, whatever the batch.
bool can_have(const JobConfig& config, int64_t ranks) {
  const auto& p = config.parallelism;
  if (p.on_mesh_mismatch == OnMeshMismatch::kFit && experts_fit(config, ranks)) return true;
  const int64_t shard = p.data_parallel_shard_degree == -1 ? ranks / p.data_parallel_replicate_degree
                                                           : p.data_parallel_shard_degree;
  return mesh_fits(p, ranks * ranks_of_sequence(config)) && experts_fit(config, shard);
}

// Returns the data-parallel ranks of the configured mesh; nullopt if they depend on the number of ranks.
std::optional<int64_t> configured_ranks(const JobConfig::Parallelism& p) {
  if (p.data_parallel_shard_degree == -1) return std::nullopt;
  return p.data_parallel_replicate_degree * p.data_parallel_shard_degree;
}

std::string describe_batch(const JobConfig& configured, const JobConfig& fitted, int64_t ranks) {
  const auto& t = fitted.training;
  const int64_t microbatch = t.local_batch_size * ranks;
  if (t.global_batch_size == -1 || t.global_batch_size % microbatch != 0) return "";
  const std::optional<int64_t> before = configured_ranks(configured.parallelism);
  return fmt::format(
      "; {} of {} on each data-parallel rank{}, {} tokens per step as before",
      counted(t.global_batch_size / microbatch, "microbatch", "microbatches"),
      counted(t.local_batch_size, "sequence"),
      before ? fmt::format(" instead of {}", t.global_batch_size / (t.local_batch_size * *before)) : "",
      format_count(static_cast<uint64_t>(t.global_batch_size * t.seq_len)));
}

}  // namespace

std::optional<DataDegrees> fit_degrees(const JobConfig& config, int64_t world) {
  const auto& p = config.parallelism;
  const int64_t kept = ranks_of_sequence(config);
  if (world % kept != 0) return std::nullopt;
  const int64_t ranks = world / kept;
  const auto fits = [&](int64_t shard) { return ranks % shard == 0 && experts_fit(config, shard); };
  if (p.data_parallel_shard_degree == -1) {
    for (int64_t replicate = std::min(p.data_parallel_replicate_degree, ranks); replicate >= 1; --replicate)
      if (ranks % replicate == 0 && fits(ranks / replicate)) return DataDegrees{replicate, ranks / replicate};
    return std::nullopt;
  }
  for (int64_t shard = p.data_parallel_shard_degree; shard <= ranks; ++shard)
    if (fits(shard)) return DataDegrees{ranks / shard, shard};
  for (int64_t shard = std::min(p.data_parallel_shard_degree, ranks); shard >= 1; --shard)
    if (fits(shard)) return DataDegrees{ranks / shard, shard};
  return std::nullopt;
}

FittedConfig fit_to_ranks(const ResolvedConfig& resolved, int64_t world) {
  const auto& p = resolved.config.parallelism;
  if (p.on_mesh_mismatch == OnMeshMismatch::kError || mesh_fits(p, world)) return {resolved};
  const std::optional<DataDegrees> degrees = fit_degrees(resolved.config, world);
  if (!degrees) return {resolved};
  FittedConfig fitted{resolved};
  JobConfig& config = fitted.resolved.config;
  const std::string origin = fmt::format("fitted to {}", counted(world, "rank"));
  const auto set = [&](const char* key, int64_t& value, int64_t to) {
    if (value == to) return;
    value = to;
    fitted.resolved.origins[key] = origin;
  };
  set(kReplicateKey, config.parallelism.data_parallel_replicate_degree, degrees->replicate);
  set(kShardKey, config.parallelism.data_parallel_shard_degree, degrees->shard);
  if (const auto before = configured_ranks(p);
      before && config.training.global_batch_size == -1 && config.training.global_batch_ramp.empty()) {
    config.training.global_batch_size = config.training.local_batch_size * *before;
    fitted.resolved.origins[kBatchKey] =
        fmt::format("the batch of the configured mesh of {} data-parallel ranks", *before);
  }
  fitted.change = fmt::format(
      "Mesh: dp_replicate {} x dp_shard {} as configured -> dp_replicate {} x dp_shard {} for {}; pp {}, cp "
      "{}, "
      "tp {} and ep {} stay (parallelism.on_mesh_mismatch = \"fit\"){}",
      p.data_parallel_replicate_degree, p.data_parallel_shard_degree, degrees->replicate, degrees->shard,
      counted(world, "rank"), p.pipeline_parallel_degree, p.context_parallel_degree, p.tensor_parallel_degree,
      p.expert_parallel_degree, describe_batch(resolved.config, config, degrees->replicate * degrees->shard));
  return fitted;
}

std::vector<int64_t> fitting_ranks(const JobConfig& config, int64_t world, int64_t batch) {
  const int64_t kept = ranks_of_sequence(config), local = config.training.local_batch_size;
  // No step has fewer sequences than one microbatch of each rank.
  const int64_t near = 4 * (world / kept) + 16, most = batch == -1 ? near : std::min(near, batch / local);
  const auto works = [&](int64_t ranks) {
    return (batch == -1 || batch % (local * ranks) == 0) && can_have(config, ranks);
  };
  std::vector<int64_t> found;
  for (int64_t ranks = std::min(world / kept, most); ranks >= 1 && found.size() < kSmaller; --ranks)
    if (works(ranks)) found.push_back(ranks * kept);
  std::ranges::reverse(found);
  size_t larger = 0;
  for (int64_t ranks = world / kept + 1; ranks <= most && larger < kLarger; ++ranks)
    if (works(ranks)) {
      found.push_back(ranks * kept);
      ++larger;
    }
  return found;
}

std::string ways_to_batch(const JobConfig& config, int64_t ranks, int64_t batch) {
  std::string ways;
  if (const std::vector<int64_t> numbers = fitting_ranks(config, ranks * ranks_of_sequence(config), batch);
      !numbers.empty())
    ways = listed_or(numbers) + (numbers == std::vector<int64_t>{1} ? " rank" : " ranks");
  for (int64_t local = std::min({config.training.local_batch_size - 1, batch / ranks, kMaxTried}); local >= 1;
       --local)
    if (batch % (local * ranks) == 0)
      return fmt::format("{}{}training.local_batch_size = {}", ways, ways.empty() ? "" : ", or ", local);
  return ways;
}

std::vector<int64_t> multiples_near(int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  return below == 0 ? std::vector<int64_t>{unit} : std::vector<int64_t>{below, below + unit};
}

std::string listed_or(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == numbers.size() ? " or " : ", ", numbers[i]);
  return text;
}

}  // namespace hyperion::config
