#include "parallel/pipeline/csv.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "parallel/pipeline/lowering.h"

namespace hyperion::parallel {
namespace {

std::string_view trimmed(std::string_view cell) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = std::min(cell.find_first_not_of(kSpace), cell.size());
  return cell.substr(begin, cell.find_last_not_of(kSpace) + 1 - begin);
}

[[noreturn]] void throw_at(std::string_view name, int rank, std::optional<size_t> column,
                           std::string_view text) {
  throw_config("{} (parallelism.pipeline_parallel_schedule_csv): row {}{}: {}", name, rank + 1,
               column ? fmt::format(", column {}", *column + 1) : "", text);
}

}  // namespace

PipelineSchedule parse_csv_schedule(std::string_view text, std::string_view name, int ranks,
                                    int microbatches) {
  PipelineSchedule schedule{microbatches, {}, {}};
  std::vector<std::vector<size_t>> columns;  // column of each action, by rank
  std::map<int, int> rank_of_stage;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (const std::string_view row : split(text, '\n')) {
    const int rank = static_cast<int>(schedule.ranks.size());
    std::vector<PipelineAction>& actions = schedule.ranks.emplace_back();
    std::vector<size_t>& columns_of_rank = columns.emplace_back();
    const std::vector<std::string_view> cells = split(row, ',');
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string_view cell = trimmed(cells[column]);
      if (cell.empty()) continue;
      const auto entry = parse_entry(cell);
      if (!entry || !is_compute(entry->front().op)) {
        throw_at(
            name, rank, column,
            fmt::format(
                "\"{}\" is no compute action, expected a stage, F, B, I or W, and a microbatch, as 2F0{}",
                printable(cell, 60),
                entry ? "; gathers, reductions and transfers are added to the file's order" : ""));
      }
      for (const PipelineAction& action : *entry) {
        rank_of_stage.emplace(action.stage, rank);
        actions.push_back(action);
        columns_of_rank.push_back(column);
      }
    }
    if (actions.empty()) throw_at(name, rank, {}, "there is no action");
  }
  if (schedule.ranks.size() != static_cast<size_t>(ranks)) {
    throw_config(
        "{} (parallelism.pipeline_parallel_schedule_csv) has {} rows, expected {}: one for each rank of "
        "parallelism.pipeline_parallel_degree",
        name, schedule.ranks.size(), ranks);
  }
  for (const auto& [stage, rank] : rank_of_stage) {
    if (stage != schedule.stages())
      throw_config(
          "{} (parallelism.pipeline_parallel_schedule_csv) has stage {} (row {}) but no stage {}: stages "
          "are numbered from 0 without gaps",
          name, stage, rank + 1, schedule.stages());
    schedule.rank_of_stage.push_back(rank);
  }
  // A file that names many stages must not cost more than it has actions.
  size_t actions = 0;
  for (const auto& list : schedule.ranks) actions += list.size();
  if (static_cast<size_t>(schedule.stages()) * microbatches > actions) {
    throw_config(
        "{} (parallelism.pipeline_parallel_schedule_csv) has {} actions for {} stages, expected a forward "
        "and a backward of each on {} microbatches",
        name, actions, schedule.stages(), microbatches);
  }
  if (const auto problem = find_problem(schedule)) {
    const auto& columns_of_rank = columns[problem->rank];
    throw_at(name, problem->rank,
             problem->position ? std::optional(columns_of_rank[*problem->position]) : std::nullopt,
             problem->text);
  }
  return schedule;
}

}  // namespace hyperion::parallel
