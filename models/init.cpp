#include "models/init.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/device/parallel_for.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"

namespace hyperion::models {
namespace {

double polynomial(const double (&c)[8], double x) {
  return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0];
}

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

struct RandomStream {
  uint64_t key;
  double lo, width;       // the part of (0, 1) that the quantile is taken of
  double std, low, high;  // value = clamp(std * z, low, high)

  double value(uint32_t high_word, uint32_t low_word) const {
    const double z = normal_quantile(lo + uniform_open(high_word, low_word) * width);
    return std::clamp(std * z, low, high);
  }
};

RandomStream stream_of(const Parameter& parameter, uint64_t seed) {
  const Init& init = parameter.init;
  RandomStream stream{hash_text(parameter.fqn, seed), 0.0, 1.0, init.std, -INFINITY, INFINITY};
  if (init.kind == Init::Kind::kTruncatedNormal) {
    stream.lo = normal_cdf(init.low / init.std);
    stream.width = normal_cdf(init.high / init.std) - stream.lo;
    stream.low = init.low;
    stream.high = init.high;
  }
  return stream;
}

// Fills out[0, count) with the elements first, first + 1, ... of the stream.
void fill_from(const RandomStream& stream, int64_t first, int64_t count, float* out) {
  constexpr int64_t kGrain = 1 << 13;
  parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const uint64_t element = static_cast<uint64_t>(first + i);
      const PhiloxBlock words = philox4x32(stream.key, element / 2);
      if (element % 2 == 0) out[i++] = static_cast<float>(stream.value(words[0], words[1]));
      if (i < end) out[i++] = static_cast<float>(stream.value(words[2], words[3]));
    }
  });
}

}  // namespace

double normal_quantile(double p) {
  static constexpr double kA[8] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                   1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                   3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double kB[8] = {1.0,
                                   4.2313330701600911252e1,
                                   6.8718700749205790830e2,
                                   5.3941960214247511077e3,
                                   2.1213794301586595867e4,
                                   3.9307895800092710610e4,
                                   2.8729085735721942674e4,
                                   5.2264952788528545610e3};
  static constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                   1.78482653991729133580e0,  2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  double r = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  double z;
  if (r <= 5.0) {
    r -= 1.6;
    z = polynomial(kC, r) / polynomial(kD, r);
  } else {
    r -= 5.0;
    z = polynomial(kE, r) / polynomial(kF, r);
  }
  return q < 0 ? -z : z;
}

void initialize(const Parameter& parameter, uint64_t seed, const Box& box, at::Tensor& part) {
  at::NoGradGuard no_grad;
  if (parameter.init.kind == Init::Kind::kOnes) {
    part.fill_(1.0);
    return;
  }
  const RandomStream stream = stream_of(parameter, seed);
  const bool direct = part.is_cpu() && part.scalar_type() == at::kFloat && part.is_contiguous();
  const at::Tensor values = direct ? part : at::empty(part.sizes(), at::TensorOptions(at::kFloat));
  float* out = values.data_ptr<float>();
  for_each_run(parameter.shape, box,
               [&](const Run& run) { fill_from(stream, run.in_tensor, run.count, out + run.in_box); });
  if (!direct) part.copy_(values);
}

}  // namespace hyperion::models
