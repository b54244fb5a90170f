#include "parallel/pipeline/schedule.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"

namespace hyperion::parallel {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";

// The digits that `text` starts with, as a number; they are taken off it.
std::optional<int> take_number(std::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<int> number = parse_number<int>(text.substr(0, digits));
  text.remove_prefix(digits);
  return number;
}

std::optional<PipelineAction> parse_action(std::string_view text) {
  const std::optional<int> stage = take_number(text);
  const size_t letters = std::min(text.find_first_of("0123456789"), text.size());
  const std::optional<PipelineOp> op = choice_of<PipelineOp>(text.substr(0, letters));
  if (!stage || !op) return {};
  text.remove_prefix(letters);
  PipelineAction action{*op, *stage};
  if (is_compute(*op) || is_transfer(*op)) {
    const std::optional<int> microbatch = take_number(text);
    if (!microbatch) return {};
    action.microbatch = *microbatch;
  }
  if (!text.empty()) return {};
  return action;
}

}  // namespace

std::string to_text(const PipelineAction& action) {
  const std::string text = fmt::format("{}{}", action.stage, text_of(action.op));
  return action.microbatch < 0 ? text : text + std::to_string(action.microbatch);
}

std::vector<std::string> to_entries(std::span<const PipelineAction> actions) {
  std::vector<std::string> entries;
  for (size_t i = 0; i < actions.size(); ++i) {
    entries.push_back(to_text(actions[i]));
    if (!actions[i].overlaps_next || i + 1 == actions.size()) continue;
    ++i;
    entries.back() = fmt::format("({};{}){}", entries.back(), to_text(actions[i]), kOverlap);
  }
  return entries;
}

std::optional<std::vector<PipelineAction>> parse_entry(std::string_view entry) {
  if (!entry.starts_with('(')) {
    const std::optional<PipelineAction> action = parse_action(entry);
    if (!action) return {};
    return std::vector{*action};
  }
  const size_t end = entry.find(')');
  if (end == std::string_view::npos || entry.substr(end + 1) != kOverlap) return {};
  std::vector<PipelineAction> pair;
  for (const std::string_view part : split(entry.substr(1, end - 1), ';')) {
    const std::optional<PipelineAction> action = parse_action(part);
    if (!action || !is_compute(action->op)) return {};
    pair.push_back(*action);
  }
  if (pair.size() != 2) return {};
  pair[0].overlaps_next = true;
  return pair;
}

PipelineKind pipeline_kind(std::string_view name) {
  for (const auto& [kind, text] : choices(PipelineKind{})) {
    const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
    if (std::ranges::equal(name, text, same)) return kind;
  }
  throw_config("parallelism.pipeline_parallel_schedule is \"{}\", expected one of {}", printable(name),
               fmt::join(texts_of<PipelineKind>(), ", "));
}

StagesPerRank stages_per_rank(PipelineKind kind) {
  switch (kind) {
    case PipelineKind::kGPipe:
    case PipelineKind::k1F1B:
    case PipelineKind::kSingle:
      return {1, 1};
    case PipelineKind::kZbvZeroBubble:
    case PipelineKind::kDualPipeV:
      return {2, 2};
    case PipelineKind::kInterleaved1F1B:
    case PipelineKind::kInterleavedZeroBubble:
    case PipelineKind::kLoopedBfs:
    case PipelineKind::kMulti:
      break;
  }
  return {2, std::numeric_limits<int>::max()};
}

int microbatches_of_step(int microbatches, int batches, int stages) {
  constexpr int64_t kMax = 1'000'000;  // each rank makes the lists of all: up to 600 bytes for each
  const int64_t per_step = int64_t{microbatches} * batches;
  if (per_step > kMax / std::max(stages, 1))
    throw_config(
        "a step has {} microbatches of parallelism.pipeline_parallel_microbatch_size in {} stages, expected "
        "at most {} together (microbatches x stages): raise it, or lower training.local_batch_size or "
        "training.global_batch_size",
        per_step, stages, kMax);
  return static_cast<int>(per_step);
}

PipelineSchedule repeat(const PipelineSchedule& schedule, int batches) {
  PipelineSchedule repeated{
      microbatches_of_step(schedule.microbatches, batches, schedule.stages()), schedule.rank_of_stage, {}};
  for (const std::vector<PipelineAction>& actions : schedule.ranks) {
    std::vector<PipelineAction>& list = repeated.ranks.emplace_back();
    for (int batch = 0; batch < batches; ++batch) {
      for (PipelineAction action : actions) {
        action.microbatch += batch * schedule.microbatches;
        list.push_back(action);
      }
    }
  }
  return repeated;
}

std::vector<int> max_microbatches_in_flight(const PipelineSchedule& schedule) {
  std::vector<int> peaks;
  for (const std::vector<PipelineAction>& actions : schedule.ranks) {
    int in_flight = 0;
    peaks.push_back(0);
    for (const PipelineAction& action : actions) {
      if (action.op == PipelineOp::kForward) peaks.back() = std::max(peaks.back(), ++in_flight);
      if (action.op == PipelineOp::kBackward || action.op == PipelineOp::kWeightGradient) --in_flight;
    }
  }
  return peaks;
}

}  // namespace hyperion::parallel
