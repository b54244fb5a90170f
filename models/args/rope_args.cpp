#include "models/args/rope_args.h"

#include <cmath>

namespace hyperion::models {

double yarn_factor(const RopeArgs& rope) {
  return 0.1 * rope.mscale * std::log(rope.factor) + 1;
}

void check(const RopeArgs& rope, DimensionChecks& checks) {
  checks.require(rope.factor >= 1, "rope_factor", rope.factor, "at least 1");
  checks.require(rope.low_freq_factor > 0, "rope_low_freq_factor", rope.low_freq_factor, "a number above 0");
  checks.require(rope.high_freq_factor >= rope.low_freq_factor, "rope_high_freq_factor",
                 rope.high_freq_factor, "at least rope_low_freq_factor");
  checks.require(rope.original_length >= 1, "rope_original_length", static_cast<double>(rope.original_length),
                 "at least 1");
  checks.require(!rope.yarn || rope.beta_slow <= rope.beta_fast, "rope_beta_slow", rope.beta_slow,
                 "at most rope_beta_fast");
  checks.require(rope.theta > 1, "rope_theta", rope.theta, "a number above 1");
  checks.fits_float("rope_theta", rope.theta);
  checks.fits_float("rope_factor", rope.factor);
  checks.fits_float("rope_low_freq_factor", rope.low_freq_factor);
  checks.fits_float("rope_high_freq_factor", rope.high_freq_factor);
  checks.fits_float("rope_beta_fast", rope.beta_fast);
  checks.fits_float("rope_beta_slow", rope.beta_slow);
  checks.fits_float("rope_mscale", rope.mscale);
}

}  // namespace hyperion::models
