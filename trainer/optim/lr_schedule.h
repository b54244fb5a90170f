// The learning-rate curve of v0.2.2: linear warm-up, a stable stretch, decay ("WSD").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperion {

enum class DecayType { kLinear, kSqrt, kCosine };
DecayType decay_type(const std::string& name);  // "linear", "sqrt", "cosine"; else Error(kUsage)

// What of a curve does not fit into its steps and is cut, a sentence each.
std::vector<std::string> curve_cuts(int64_t total_steps, int64_t warmup_steps,
                                    std::optional<double> decay_ratio);

class LrSchedule {
 public:
  // total_steps is the horizon of the curve. Without decay_ratio the decay starts right after warm-up; with
  // it, the last round(total_steps * decay_ratio) steps decay (half to even). Parts that do not fit are cut:
  // warm-up first keeps.
  LrSchedule(int64_t total_steps, int64_t warmup_steps, std::optional<double> decay_ratio, DecayType type,
             double min_factor);

  // The factor of the base rate in 0-based step s:
  //   s < W: (s+1)/W;  s < W+S: 1;  else m + (1-m) f(p), p = (s+1-(W+S))/D, f = 1-p | 1-sqrt(p) | (1+cos(pi
  //   p))/2,
  // with S = T+1-W-D: the virtual extra step keeps the last real step above the minimum. Beyond the horizon
  // it stays where the decay ends, at m, or at 1 when nothing decays: never below 0, never rising.
  double factor(int64_t step) const;

 private:
  int64_t warmup_, stable_, decay_;
  DecayType type_;
  double min_factor_;
};

}  // namespace hyperion
