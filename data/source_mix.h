// A SourceMix decides which source each sequence comes from, by weight. Pure.
//
// The order is Tijdeman's solution of the chairman assignment problem (R. Tijdeman, The chairman assignment
// problem, Discrete Mathematics 32, 1980): after any number n of sequences, the number that came from a
// source differs from share * n by at most 1 - 1 / (2k - 2), where k is the number of sources. It is a
// function of the shares and of the number of the sequence, so every mesh has the same one. All arithmetic is
// in whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hyperion::data {

class SourceMix {
 public:
  // The sum of the shares of all sources, which are whole numbers.
  static constexpr int64_t kWhole = 1'000'000'000'000'000;

  // Weights in any unit; a source of weight 0 gives no sequences. At least one is above 0, none is below.
  explicit SourceMix(std::span<const double> weights);

  // Returns the source of the next sequence, which then counts as drawn.
  size_t draw();

  // The state: the number of sequences that came from each source.
  const std::vector<uint64_t>& drawn() const { return drawn_; }
  // Continues after `drawn`. Returns false, and changes nothing, if this mix never has that state.
  bool restore(const std::vector<uint64_t>& drawn);

  const std::vector<int64_t>& shares() const { return shares_; }

 private:
  std::vector<int64_t> shares_;   // sum kWhole
  std::vector<int64_t> credits_;  // share * number of sequences - kWhole * drawn: above 0 if it is behind
  std::vector<uint64_t> drawn_;
  int64_t active_ = 0;  // number of sources whose share is above 0
};

}  // namespace hyperion::data
