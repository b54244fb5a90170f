// The rates that a GPU and its links reach in a training step: each constant is a range from its low to its
// high end (scripts/cards.json).
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trainer/plan/step_work.h"

namespace hyperion::trainer {

// A card with one value for each constant. Rates are per second.
struct Card {
  std::array<double, static_cast<size_t>(Rate::kCount)> flops{};
  double memory = 0;         // bytes read and written by kernels of rows
  double casts = 0;          // bytes read and written by casts to FP8
  double launch = 0;         // seconds between the end of a kernel and the begin of the next
  double link = 0;           // bytes that a rank sends in a ring over the links of its host
  double link_share = 0;     // share of the multiprocessors that a collective takes from what it overlaps
  double network_share = 0;  // share of the line rate between nodes that is reached
  double overhead = 1;       // how many times as long as its parts a step takes
  double peak = 0;           // dense bf16 FLOP/s, of which MFU is a share

  double rate(Rate rate) const { return flops[static_cast<size_t>(rate)]; }
};

struct CardRange {
  std::string name;         // "H100 SXM, 700 W"
  double memory_bytes = 0;  // of the GPU
  Card slow, middle, fast;
};

// Reads a file of cards: an object {name: {name, memory_gib, like, constants: {constant: {low, high}}}}. A
// card with "like" takes from that card what it does not have. Throws Error(kUsage) for an unreadable file,
// and for a missing, unknown or impossible constant, with the file, the card and the constant.
class Cards {
 public:
  explicit Cards(const std::filesystem::path& file);
  // Returns the card of that name, or of a name that begins with it ("h100": "h100-700w"). Throws
  // Error(kUsage) with the names if there is none.
  CardRange find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  struct Entry {
    std::string name, like;
    double memory_gib = 0;
    std::map<std::string, std::pair<double, double>> constants;  // low, high
  };
  const Entry& entry(const std::string& name) const;
  std::map<std::string, std::pair<double, double>> constants_of(const std::string& name, int depth) const;

  std::filesystem::path file_;
  std::map<std::string, Entry> entries_;
};

}  // namespace hyperion::trainer
