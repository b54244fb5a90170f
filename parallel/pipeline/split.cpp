#include "parallel/pipeline/split.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/text.h"

namespace hyperion::parallel {
namespace {

constexpr size_t kSuggestedValues = 8;

// The number of blocks, with embedding and head counted as the options say. Weights beyond any model are
// clamped, so that the sum fits an int; split_units refuses them.
int64_t effective_layers(int blocks, const SplitOptions& options) {
  constexpr int64_t kMost = 1'000'000'000;
  return blocks + std::min(options.first_stage_less_layers, kMost) +
         std::min(options.last_stage_less_layers, kMost);
}

}  // namespace

int number_of_stages(PipelineKind kind, int ranks, int blocks, const SplitOptions& options) {
  const StagesPerRank allowed = stages_per_rank(kind);
  if (!options.layers_per_stage) return ranks * allowed.min;
  const int64_t effective = effective_layers(blocks, options);
  const auto stages_for = [&](int64_t layers) { return (effective - 1) / layers + 1; };
  const int64_t stages = stages_for(*options.layers_per_stage);
  if (stages % ranks == 0 && allowed.allows(static_cast<int>(stages / ranks)))
    return static_cast<int>(stages);

  std::vector<int64_t> fitting;
  for (int per_rank = allowed.min;
       per_rank <= std::min<int64_t>(allowed.max, effective / ranks) && fitting.size() < kSuggestedValues;
       ++per_rank) {
    const int64_t wanted = int64_t{ranks} * per_rank, layers = (effective - 1) / wanted + 1;
    if (stages_for(layers) == wanted) fitting.push_back(layers);
  }
  throw_config(
      "parallelism.pipeline_parallel_layers_per_stage = {}: {} blocks, with {} for the embedding and {} for "
      "the head, make {} stages, and {} on {} ranks needs {}; {}",
      *options.layers_per_stage, blocks, options.first_stage_less_layers, options.last_stage_less_layers,
      stages, text_of(kind), ranks,
      allowed.min == allowed.max ? std::to_string(ranks * allowed.min)
                                 : fmt::format("a multiple of {}, at least {}", ranks, ranks * allowed.min),
      fitting.empty()
          ? "no value fits: choose another schedule, or fewer ranks (parallelism.pipeline_parallel_degree)"
          : fmt::format("values that fit: {}", fmt::join(fitting, ", ")));
}

std::vector<UnitRange> split_units(int stages, int blocks, const SplitOptions& options) {
  const int64_t embedding = options.first_stage_less_layers, head = options.last_stage_less_layers;
  const int64_t effective = effective_layers(blocks, options), share = effective / stages;
  if (share == 0) {
    throw_config(
        "{} pipeline stages are more than the {} that there is to divide: {} blocks, {} for the embedding "
        "(parallelism.pipeline_parallel_first_stage_less_layers) and {} for the head "
        "(pipeline_parallel_last_stage_less_layers); lower parallelism.pipeline_parallel_degree",
        stages, effective, blocks, embedding, head);
  }
  const auto check_weight = [&](std::string_view key, int64_t weight) {
    if (weight > share) {
      throw_config(
          "parallelism.{} is {}, more than the {} that each of {} stages has ({} blocks, embedding and head "
          "counted as {} and {}): lower it, or lower parallelism.pipeline_parallel_degree",
          key, weight, share, stages, blocks, embedding, head);
    }
  };
  check_weight("pipeline_parallel_first_stage_less_layers", embedding);
  check_weight("pipeline_parallel_last_stage_less_layers", head);
  if (stages == 1) return {{0, static_cast<size_t>(blocks) + 2}};

  std::vector<UnitRange> ranges;
  int64_t next = 0;
  for (int stage = 0; stage < stages; ++stage) {
    int64_t units = share + (stage < effective % stages ? 1 : 0);
    if (stage == 0) units += 1 - embedding;
    if (stage == stages - 1) units += 1 - head;
    ranges.push_back({static_cast<size_t>(next), static_cast<size_t>(next + units)});
    next += units;
  }
  return ranges;
}

std::vector<UnitRange> units_of_model_parts(std::span<const std::string> units,
                                            const std::vector<std::vector<std::string>>& parts) {
  constexpr std::string_view kKey = "parallelism.module_fqns_per_model_part";
  std::vector<std::string> modules;
  std::vector<size_t> unit_of_module;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const std::string_view module : split(units[unit], ',')) {
      modules.emplace_back(module);
      unit_of_module.push_back(unit);
    }
  }
  constexpr size_t kNowhere = static_cast<size_t>(-1);
  std::vector<size_t> part_of_module(modules.size(), kNowhere);
  for (size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].empty()) throw_config("{}: part {} is empty, expected modules of the model", kKey, part);
    for (const std::string& name : parts[part]) {
      const size_t module = std::ranges::find(modules, name) - modules.begin();
      if (module == modules.size()) {
        throw_config("{}: part {} names \"{}\", which the model does not have{}", kKey, part, printable(name),
                     did_you_mean(nearest_name(name, modules)));
      }
      if (part_of_module[module] != kNowhere) {
        throw_config("{}: {} is in part {} and in part {}, expected once", kKey, name, part_of_module[module],
                     part);
      }
      part_of_module[module] = part;
    }
  }
  for (size_t module = 0; module < modules.size(); ++module) {
    if (part_of_module[module] == kNowhere) {
      throw_config("{}: {} is in none of the {} parts, and would not be trained", kKey, modules[module],
                   parts.size());
    }
    if (module == 0) continue;
    const size_t part = part_of_module[module], before = part_of_module[module - 1];
    if (part < before) {
      throw_config("{}: {} is in part {} and {}, which comes before it in the model, in part {}", kKey,
                   modules[module], part, modules[module - 1], before);
    }
    if (part != before && unit_of_module[module] == unit_of_module[module - 1]) {
      throw_config("{}: {} is in part {} and {} in part {}, expected both in one", kKey, modules[module - 1],
                   before, modules[module], part);
    }
  }
  std::vector<UnitRange> ranges(parts.size());
  size_t next = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    ranges[part].first = next;
    for (size_t module = 0; module < modules.size(); ++module)
      if (part_of_module[module] == part) next = unit_of_module[module] + 1;
    ranges[part].end = next;
  }
  return ranges;
}

}  // namespace hyperion::parallel
