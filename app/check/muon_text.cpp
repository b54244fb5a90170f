#include "app/check/muon_text.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"

namespace hyperion::app {

std::string describe_muon(const trainer::MuonWork& work) {
  std::vector<std::string> groups;
  for (const trainer::MuonExchange& exchange : work.exchanges)
    groups.push_back(
        fmt::format("{} in {}", readable_bytes(exchange.step()), parallel::name_of(exchange.group)));
  return fmt::format(
      "the fullest rank multiplies {:.3g} TFLOP in a step, {:.2f} times the mean, for {}; it sends {} per "
      "step "
      "to owners and back{}; buffers {}",
      work.flops / 1e12, work.load(), counted(static_cast<uint64_t>(work.matrices), "matrix", "matrices"),
      groups.empty() ? "nothing" : readable_bytes(work.step_bytes()),
      groups.size() > 1 ? fmt::format(" ({})", fmt::join(groups, ", ")) : "", readable_bytes(work.buffers));
}

CheckTable::Facts muon_facts(const trainer::MuonWork& work) {
  CheckTable::Facts facts = {{"flops", work.flops},
                             {"mean_flops", work.mean_flops},
                             {"load", work.load()},
                             {"matrices", work.matrices},
                             {"exchange_bytes", work.step_bytes()},
                             {"exchange_gib", work.step_bytes() / (1 << 30)},
                             {"buffer_bytes", work.buffers}};
  for (const trainer::MuonExchange& exchange : work.exchanges) {
    const std::string group(parallel::name_of(exchange.group));
    facts.emplace_back(group + "_bytes_to_owners", exchange.sent);
    facts.emplace_back(group + "_bytes_received", exchange.received);
  }
  return facts;
}

}  // namespace hyperion::app
