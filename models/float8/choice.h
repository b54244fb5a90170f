// Chooses the linear layers that are converted to FP8, and says why other layers are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/args/float8_recipe.h"
#include "models/float8/scaled_matmul.h"

namespace hyperion::float8 {

struct LinearShape {
  std::string name;  // the module's name, "layers.0.attention.wq"
  int64_t out = 0, in = 0;
  int64_t parts = 1;  // the number of ranks that shard it
  int split = 0;      // the sharded dimension of [out, in]
};

struct Choice {
  std::string name;
  std::string why_not;   // empty if the layer is converted
  bool by_part = false;  // whether only the shape of a rank's shard prevents the conversion
};

// An entry of a filter that excludes layers too small to gain, by torchao's rules.
inline constexpr const char* kAutoFilter = "auto_filter_small_kn";

// Returns one choice per layer, in order. It excludes a layer if an entry of `filter` is part of its name, if
// an extent of the layer is not a multiple of 16, if an extent of a rank's shard is not and the hardware
// multiplies it (kNative), or by kAutoFilter. kRowwiseWithGwHp does not support kAutoFilter and throws
// Error(kUsage).
std::vector<Choice> choose_layers(const std::vector<LinearShape>& layers,
                                  const std::vector<std::string>& filter, Recipe recipe, Gemm gemm);

// Returns the choices for MXFP8. Its blocks need extents that are multiples of 32, also of a rank's shard and
// in emulation. kAutoFilter has no special meaning.
std::vector<Choice> choose_mx_layers(const std::vector<LinearShape>& layers,
                                     const std::vector<std::string>& filter);

// Returns a sentence for each entry of `filter` that matches no layer, with the most similar part of a
// layer's name. `table` is the config table of the filter.
std::vector<std::string> unmatched_filters(const std::vector<LinearShape>& layers,
                                           const std::vector<std::string>& filter,
                                           const std::string& table = "quantize.linear.float8");

}  // namespace hyperion::float8
