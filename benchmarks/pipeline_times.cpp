// When each action of a pipeline schedule runs, where actions cost what the caller says.
//   benchmark_pipeline_times [--recompute] KIND|FILE.csv RANKS STAGES_PER_RANK MICROBATCHES [COST=SECONDS
//   ...]
// COST is F, B, I or W of every stage, or of one ("2F"), or T, of a transfer; by default F=1 B=2 I=1 W=1 T=0.
// Transfers have the order of the trained job (with --recompute one whose blocks are all run again in
// backward) and, as over NCCL, a stream for each direction. Prints one line of JSON: seconds and bubble of
// the step, exposed (the part of the seconds that transfers add), and the compute actions of each rank with
// start and end. scripts/pipeline_picture.py draws it, benchmarks/pipeline.py reads it.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "parallel/pipeline/csv.h"
#include "parallel/pipeline/lowering.h"

using namespace hyperion;
using namespace hyperion::parallel;

namespace {

constexpr const char* kUsage =
    "usage: benchmark_pipeline_times [--recompute] KIND|FILE.csv RANKS STAGES_PER_RANK MICROBATCHES "
    "[COST=SECONDS ...]";

template <class Number>
Number number_of(std::string_view text, Number least) {
  const std::optional<Number> number = parse_number<Number>(text);
  if (!number || !(*number >= least)) throw_config("\"{}\" is no number from {}: {}", text, least, kUsage);
  return *number;
}

std::string times_of(std::vector<std::string> words) {
  const bool recomputes = std::erase(words, "--recompute") > 0;
  if (words.size() < 4) throw_config("{}", kUsage);
  const PipelineShape shape{.ranks = number_of(words[1], 1),
                            .stages_per_rank = number_of(words[2], 1),
                            .microbatches = number_of(words[3], 1)};
  const PipelineSchedule schedule =
      words[0].ends_with(".csv")
          ? parse_csv_schedule(read_file(words[0]), words[0], shape.ranks, shape.microbatches)
          : make_schedule(pipeline_kind(words[0]), shape);
  std::map<std::string, double> costs{{"F", 1}, {"B", 2}, {"I", 1}, {"W", 1}, {"T", 0}};
  for (size_t i = 4; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const size_t letter = name.find_first_not_of("0123456789");
    if (equals == std::string::npos || letter == std::string::npos || !costs.contains(name.substr(letter)))
      throw_config("\"{}\" is no cost, expected for example 2F=0.5: {}", words[i], kUsage);
    costs[name] = number_of(words[i].substr(equals + 1), 0.0);
  }
  const auto cost = [&](bool transfers) -> PipelineCosts {
    return [&costs, transfers](const PipelineAction& action) {
      if (is_transfer(action.op)) return transfers ? costs.at("T") : 0.0;
      const std::string op(text_of(action.op));
      const auto of_stage = costs.find(std::to_string(action.stage) + op);
      return of_stage != costs.end() ? of_stage->second : costs.at(op);
    };
  };
  const PipelineSchedule lowered = lower(schedule, planned_costs(recomputes));
  const PipelineTiming timing = simulate(lowered, cost(true), TransferStreams::kPerDirection),
                       instant = simulate(lowered, cost(false), TransferStreams::kPerDirection);
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    std::vector<std::string> actions;
    for (size_t i = 0; i < lowered.ranks[rank].size(); ++i)
      if (is_compute(lowered.ranks[rank][i].op))
        actions.push_back(fmt::format("[\"{}\", {:.9g}, {:.9g}]", to_text(lowered.ranks[rank][i]),
                                      timing.start[rank][i], timing.end[rank][i]));
    ranks.push_back(fmt::format("[{}]", fmt::join(actions, ", ")));
  }
  return fmt::format(
      "{{\"seconds\": {:.9g}, \"bubble\": {:.9g}, \"exposed\": {:.9g}, \"rank_of_stage\": [{}], \"ranks\": "
      "[{}]}}",
      timing.seconds, timing.bubble, timing.seconds - instant.seconds, fmt::join(lowered.rank_of_stage, ", "),
      fmt::join(ranks, ", "));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    fmt::print("{}\n", times_of({argv + 1, argv + argc}));
    return std::fflush(stdout) == 0 ? 0 : 74;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
