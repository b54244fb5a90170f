#include "trainer/metrics/rank_figures.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"

namespace hyperion::metrics {
namespace {

// The lower one of two, so that of two ranks the slower one is compared with the other.
double median_own_seconds(const std::vector<RankFigures>& ranks) {
  std::vector<double> seconds;
  for (const RankFigures& rank : ranks) seconds.push_back(rank.own_seconds);
  const auto middle = seconds.begin() + static_cast<ptrdiff_t>((seconds.size() - 1) / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
}

// Combines the numbers of the ranks that have one; adds nothing if none has.
template <typename Number, typename Combine>
void append(MetricList& list, const char* tag, const std::vector<RankFigures>& ranks,
            std::optional<Number> GpuCounters::*member, const Combine& combine) {
  std::optional<Number> all;
  for (const RankFigures& rank : ranks)
    if (rank.gpu && (*rank.gpu).*member)
      all = all ? combine(*all, *((*rank.gpu).*member)) : *((*rank.gpu).*member);
  if (all) list.emplace_back(tag, static_cast<double>(*all));
}

}  // namespace

MetricList rank_metrics(const std::vector<RankFigures>& ranks) {
  MetricList list;
  if (ranks.size() > 1) {
    const auto slowest = std::ranges::max_element(ranks, {}, &RankFigures::own_seconds);
    const double median = median_own_seconds(ranks);
    list.emplace_back("stragglers/own_time_median(s)", median);
    list.emplace_back("stragglers/own_time_max(s)", slowest->own_seconds);
    list.emplace_back("stragglers/slowest_over_median", median > 0 ? slowest->own_seconds / median : 1);
    list.emplace_back("stragglers/slowest_rank", static_cast<double>(slowest - ranks.begin()));
  }
  if (std::ranges::none_of(ranks, [](const RankFigures& rank) { return rank.gpu.has_value(); })) return list;
  const auto sum = [](auto a, auto b) { return a + b; };
  const auto larger = [](auto a, auto b) { return std::max(a, b); };
  const auto smaller = [](auto a, auto b) { return std::min(a, b); };
  append(list, "gpu/ecc_corrected", ranks, &GpuCounters::ecc_corrected, sum);
  append(list, "gpu/ecc_uncorrected", ranks, &GpuCounters::ecc_uncorrected, sum);
  append(list, "gpu/remapped_rows", ranks, &GpuCounters::remapped_rows, sum);
  for (const ThrottleReason& reason : kThrottleReasons) {
    const auto throttled = [&](const RankFigures& rank) {
      return rank.gpu && (rank.gpu->throttled & reason.bits) != 0;
    };
    list.emplace_back(fmt::format("gpu/throttled_ranks/{}", reason.name),
                      static_cast<double>(std::ranges::count_if(ranks, throttled)));
  }
  append(list, "gpu/min_sm_clock(MHz)", ranks, &GpuCounters::sm_mhz, smaller);
  append(list, "gpu/max_temperature(C)", ranks, &GpuCounters::temperature, larger);
  append(list, "gpu/max_power(W)", ranks, &GpuCounters::watts, larger);
  return list;
}

MetricList pipeline_metrics(const std::vector<RankFigures>& ranks, const std::vector<int>& stages,
                            double planned_bubble) {
  double longest = 0, worked = 0;
  std::map<int, std::pair<double, int>> by_stage;  // seconds of work and ranks
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double seconds = ranks[rank].schedule_seconds - ranks[rank].transfer_wait_seconds;
    longest = std::max(longest, ranks[rank].schedule_seconds);
    worked += seconds;
    auto& [sum, count] = by_stage[stages.at(rank)];
    sum += seconds;
    ++count;
  }
  const auto mean = [](const auto& stage) { return stage.second.first / stage.second.second; };
  const auto slowest = std::ranges::max_element(by_stage, {}, mean);
  const double all = longest * static_cast<double>(ranks.size());
  const double mean_of_all = worked / static_cast<double>(ranks.size());
  return {{"pipeline/bubble", all > 0 ? 1 - worked / all : 0},
          {"pipeline/planned_bubble", planned_bubble},
          {"pipeline/slowest_rank", slowest->first},
          {"pipeline/slowest_over_mean", mean_of_all > 0 ? mean(*slowest) / mean_of_all : 1}};
}

std::string RankWarnings::name(size_t rank) const {
  const RankPlace& place = places_.at(rank);
  return fmt::format("rank {} on {}{}", rank, place.host, place.gpu.empty() ? "" : ", GPU " + place.gpu);
}

// Empty where it is not worth a warning.
std::string RankWarnings::slow_rank(int64_t step, size_t rank, double seconds, double median) {
  int& logs = ranks_[rank].slow_logs;
  logs = seconds > kSlow * median && seconds - median > kSlowSeconds ? logs + 1 : 0;
  if (logs < kSlowLogs || (logs - kSlowLogs) % kSlowLogsAgain != 0) return {};
  return fmt::format(
      "{}: its own work of step {} took {:.3f} s, {:.0f} % more than the median of {:.3f} s, and it was that "
      "slow in each of the last {} logged steps: all ranks wait for it. Look {}at other programs on that "
      "host and at what its data take, and leave the host out (--exclude) if it stays so",
      name(rank), step, seconds, 100 * (seconds / median - 1), median, logs,
      places_[rank].gpu.empty() ? "" : "at its clocks (nvidia-smi -q -d CLOCK,PERFORMANCE), ");
}

std::string RankWarnings::gpu_trouble(size_t rank, const GpuCounters& now) {
  Known& known = ranks_[rank];
  std::vector<std::string> found;
  std::vector<std::string> reasons;
  for (const ThrottleReason& reason : kThrottleReasons) {
    if ((now.throttled & reason.bits) == 0 || (known.throttled & reason.bits) != 0) continue;
    reasons.emplace_back(reason.name);
    known.throttled |= reason.bits;
  }
  if (!reasons.empty()) found.push_back(fmt::format("clocks are throttled ({})", fmt::join(reasons, ", ")));
  const auto grown = [&](const std::optional<int64_t>& count, int64_t& warned, int64_t times, const char* one,
                         const char* many) {
    if (!count || *count <= warned || *count < times * warned) return;
    found.push_back(counted(*count, one, many));
    warned = *count;
  };
  grown(now.ecc_uncorrected, known.ecc_uncorrected, 1, "uncorrected memory (ECC) error",
        "uncorrected memory (ECC) errors");
  grown(now.ecc_corrected, known.ecc_corrected, kMoreCorrected, "corrected memory (ECC) error",
        "corrected memory (ECC) errors");
  grown(now.remapped_rows, known.remapped_rows, 1, "remapped row of memory", "remapped rows of memory");
  if (found.empty()) return {};
  return fmt::format(
      "{}: {} since the start of this run; look at its clocks, temperature, ECC errors and remapped rows "
      "(nvidia-smi -q) and at the kernel's log for Xid, and drain the host if it goes on",
      name(rank), fmt::join(found, ", "));
}

std::vector<std::string> RankWarnings::add(int64_t step, const std::vector<RankFigures>& ranks) {
  std::map<int, std::vector<RankFigures>> by_stage;
  for (size_t rank = 0; rank < ranks.size(); ++rank) by_stage[places_.at(rank).stage].push_back(ranks[rank]);
  std::map<int, double> medians;
  for (const auto& [stage, alike] : by_stage) medians[stage] = median_own_seconds(alike);
  std::vector<std::string> warnings;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    warnings.push_back(slow_rank(step, rank, ranks[rank].own_seconds, medians.at(places_[rank].stage)));
    if (ranks[rank].gpu) warnings.push_back(gpu_trouble(rank, *ranks[rank].gpu));
  }
  std::erase(warnings, "");
  if (warnings.size() > kMaxNamed) {
    const size_t more = warnings.size() - kMaxNamed;
    warnings.resize(kMaxNamed);
    warnings.push_back(counted(static_cast<int64_t>(more), "more warning like these in this step",
                               "more warnings like these in this step"));
  }
  return warnings;
}

}  // namespace hyperion::metrics
