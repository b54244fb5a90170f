#include "app/check/memory_texts.h"

#include <algorithm>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "parallel/comm/communicator_memory.h"

namespace hyperion::app {
namespace {

// Returns "3.00 GiB: weights 2.00 GiB, gradients 1.00 GiB", with `words` after the sum.
std::string sum_of_parts(std::vector<trainer::MemoryPart> parts, const char* words) {
  const double sum = trainer::total(parts);
  std::erase_if(parts, [](const trainer::MemoryPart& part) { return part.bytes == 0; });
  std::ranges::stable_sort(parts, std::ranges::greater{}, &trainer::MemoryPart::bytes);
  std::vector<std::string> texts;
  for (const trainer::MemoryPart& part : parts)
    texts.push_back(fmt::format("{} {}", part.name, readable_bytes(part.bytes)));
  return fmt::format("{}{}: {}", readable_bytes(sum), words, fmt::join(texts, ", "));
}

}  // namespace

std::string describe_communicators(const trainer::Communicators& communicators, int64_t pipeline_ctas,
                                   double needs, double memory) {
  if (communicators.count() == 0) return "";
  std::vector<std::string> parts;
  double sum = 0;
  const auto add = [&](int count, const char* what, parallel::GroupTraffic traffic) {
    const double bytes = parallel::communicator_bytes(traffic, static_cast<int>(pipeline_ctas));
    sum += count * bytes;
    if (count > 0) parts.push_back(fmt::format("{} {} of {}", count, what, readable_bytes(bytes)));
  };
  add(communicators.collectives, "for collectives", parallel::GroupTraffic::kCollectives);
  add(communicators.exchanges, "for exchanges", parallel::GroupTraffic::kExchanges);
  add(communicators.stages, "between stages", parallel::GroupTraffic::kStages);
  return fmt::format("; NCCL communicators, not counted: {}, up to {} ({}){}", communicators.count(),
                     readable_bytes(sum), fmt::join(parts, ", "),
                     needs + sum > memory ? ": with them the memory may run out" : "");
}

std::string describe_expert_rows(double rows, double needs, double memory) {
  if (rows == 0) return "";
  const double more = rows / 4;
  return fmt::format(
      "; experts' rows, counted at the mean of the ranks: a rank with 1.25 times as many needs {} more{}",
      readable_bytes(more), needs + more > memory ? ", and the memory runs out" : "");
}

std::string describe_needs(const trainer::MemoryNeeds& needs, bool on_gpu, const char* words) {
  if (!on_gpu) return sum_of_parts(needs.host, words);
  return sum_of_parts(needs.device, words) +
         (needs.keeps_state_in_host() ? "; in host memory " + sum_of_parts(needs.host, words) : "");
}

}  // namespace hyperion::app
