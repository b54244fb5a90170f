// LrSchedule is v0.2.2's learning-rate curve: linear warm-up, a stable stretch, decay ("WSD").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::optim {

// Returns a sentence for each part of the curve that does not fit into its steps and is cut. `steps` is as
// for LrSchedule.
std::vector<std::string> curve_cuts(const config::JobConfig::LrScheduler& options, int64_t steps);

class LrSchedule {
 public:
  // The horizon of the curve is options.total_steps, or `steps` if that is unset. Without decay_ratio the
  // decay starts right after warm-up; with it, the last round(total_steps * decay_ratio) steps decay (half to
  // even). Parts that do not fit are cut; warm-up keeps its steps first.
  LrSchedule(const config::JobConfig::LrScheduler& options, int64_t steps);

  // Returns the factor of the base rate in 0-based step s:
  //   s < W: (s+1)/W;  s < W+S: 1;  else m + (1-m) f(p), p = (s+1-(W+S))/D, f = 1-p | 1-sqrt(p) | (1+cos(pi
  //   p))/2,
  // with S = T+1-W-D: the virtual extra step keeps the last real step above the minimum. Beyond the horizon
  // the factor stays at m, the end of the decay, or at 1 if nothing decays; it is never below 0 and never
  // rises.
  double factor(int64_t step) const;

 private:
  int64_t warmup_, stable_, decay_;
  config::DecayType type_;
  double min_factor_;
};

}  // namespace hyperion::optim
