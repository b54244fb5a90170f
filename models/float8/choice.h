// Which linear layers are converted to FP8, and why the others are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/args/float8_recipe.h"
#include "models/float8/scaled_matmul.h"

namespace hyperion::float8 {

struct LinearShape {
  std::string name;  // of the module: "layers.0.attention.wq"
  int64_t out = 0, in = 0;
  // The ranks that divide it, and along which dimension of [out, in].
  int64_t parts = 1;
  int split = 0;
};

struct Choice {
  std::string name;
  std::string why_not;   // empty: converted
  bool by_part = false;  // left out for the part of one rank alone
};

// The pseudo-name in a filter that leaves out layers too small to gain, by torchao's rules.
inline constexpr const char* kAutoFilter = "auto_filter_small_kn";

// One choice per layer, in their order. A layer is left out when an entry of `filter` is part of its name,
// when an extent of the layer is no multiple of 16, or one of a rank's part where the hardware multiplies it
// (kNative), and by kAutoFilter (which kRowwiseWithGwHp does not know: Error(kUsage)).
std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe, Gemm gemm);

// The same for MXFP8, whose blocks want extents that are multiples of 32, also of a rank's part and in
// emulation; kAutoFilter is a name like any other.
std::vector<Choice> choose_mx_layers(const std::vector<LinearShape>& layers,
                                     const std::vector<std::string>& filter);

// A sentence for each entry of `filter`, the list of the table `table`, that matches no layer, with the
// nearest part of a name that there is.
std::vector<std::string> unmatched_filters(const std::vector<LinearShape>& layers,
                                           const std::vector<std::string>& filter,
                                           const std::string& table = "quantize.linear.float8");

}  // namespace hyperion::float8
