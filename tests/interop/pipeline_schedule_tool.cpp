// Answers pipeline_schedules_peer.py, a line for each line of the input: pipeline_schedule_tool < questions
//   schedule KIND RANKS STAGES_PER_RANK MICROBATCHES   a rank's entries between commas, ranks between bars
//   lowered KIND RANKS STAGES_PER_RANK MICROBATCHES    the same with gathers, reductions and transfers
//   split STAGES BLOCKS FIRST_LESS LAST_LESS           "first-end" of each stage
// "refused: " and why, where there is none.
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/split.h"

using namespace hyperion::parallel;

namespace {

std::string answer(const std::string& question) {
  std::istringstream words(question);
  std::string what, kind;
  words >> what;
  std::vector<std::string> parts;
  if (what == "split") {
    int stages = 0, blocks = 0;
    SplitOptions options;
    words >> stages >> blocks >> options.first_stage_less_layers >> options.last_stage_less_layers;
    for (const UnitRange& range : split_units(stages, blocks, options))
      parts.push_back(fmt::format("{}-{}", range.first, range.end));
    return fmt::format("{}", fmt::join(parts, " "));
  }
  PipelineShape shape;
  words >> kind >> shape.ranks >> shape.stages_per_rank >> shape.microbatches;
  PipelineSchedule schedule = make_schedule(pipeline_kind(kind), shape);
  if (const auto problem = find_problem(schedule)) return "broken: " + problem->text;
  if (what == "lowered") {
    schedule = lower(schedule, uniform_costs(1, 2, 1, 1, 0));
    if (const auto problem = find_problem(schedule)) return "broken: " + problem->text;
  }
  for (const auto& actions : schedule.ranks)
    parts.push_back(fmt::format("{}", fmt::join(to_entries(actions), ",")));
  return fmt::format("{}", fmt::join(parts, "|"));
}

}  // namespace

int main() {
  for (std::string question; std::getline(std::cin, question);) {
    try {
      std::cout << answer(question) << '\n';
    } catch (const hyperion::Error& error) {
      std::cout << "refused: " << error.what() << '\n';
    }
  }
  return std::cout.flush() ? 0 : 74;
}
