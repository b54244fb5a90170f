#include "data/source_mix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace hyperion::data {
namespace {

__extension__ using Wide = __int128;  // products of two shares

}  // namespace

SourceMix::SourceMix(std::span<const double> weights)
    : shares_(weights.size()), credits_(weights.size()), drawn_(weights.size()) {
  const double largest = weights.empty() ? 0 : *std::ranges::max_element(weights);
  if (!(largest > 0) || !std::isfinite(largest) || *std::ranges::min_element(weights) < 0)
    throw_bug("weights of sources: the largest is {}", largest);
  double sum = 0;  // of the weights as parts of the largest, which cannot overflow
  for (const double weight : weights) sum += weight / largest;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const double share = weights[i] / largest / sum * static_cast<double>(kWhole);
    // A tiny weight is not none.
    shares_[i] = weights[i] > 0 ? std::max<int64_t>(1, std::llround(share)) : 0;
    active_ += shares_[i] > 0 ? 1 : 0;
  }
  // The largest share takes what rounding has left.
  *std::ranges::max_element(shares_) += kWhole - std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
}

size_t SourceMix::draw() {
  // In units of 1 / (2k - 2) sequences. A source whose credit is at least one unit may be drawn; of these the
  // one is that would be the first to be too far behind, at a credit of 2k - 3 units.
  const int64_t units = std::max<int64_t>(2 * active_ - 2, 1);
  size_t chosen = shares_.size();
  Wide chosen_left = 0;  // its distance from that credit
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] == 0) continue;
    credits_[i] += shares_[i];
    if (Wide{credits_[i]} * units < kWhole) continue;
    const Wide left = Wide{kWhole} * (units - 1) - Wide{credits_[i]} * units;
    if (chosen < shares_.size() && left * shares_[chosen] >= chosen_left * shares_[i]) continue;
    chosen = i;
    chosen_left = left;
  }
  if (chosen == shares_.size()) throw_bug("no source of {} can be drawn", shares_.size());
  credits_[chosen] -= kWhole;
  ++drawn_[chosen];
  return chosen;
}

bool SourceMix::restore(const std::vector<uint64_t>& drawn) {
  if (drawn.size() != shares_.size()) return false;
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max() / 2;
  uint64_t sequences = 0;
  for (const uint64_t count : drawn) {
    if (count > kLargest || sequences > kLargest - count) return false;
    sequences += count;
  }
  std::vector<int64_t> credits(drawn.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    const Wide credit = Wide{shares_[i]} * sequences - Wide{kWhole} * drawn[i];
    if (credit >= kWhole || credit <= -kWhole) return false;
    credits[i] = static_cast<int64_t>(credit);
  }
  credits_ = std::move(credits);
  drawn_ = drawn;
  return true;
}

}  // namespace hyperion::data
