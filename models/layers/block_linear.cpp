#include "models/layers/block_linear.h"

#include <cmath>

#include <fmt/format.h>

namespace hyperion::models {
namespace {

ParameterPtr make_weight(int64_t layer, std::string_view name, int64_t out, int64_t in, double std,
                         std::optional<int> split) {
  return make_parameter(fmt::format("layers.{}.{}.weight", layer, name), {out, in},
                        Init::truncated_normal(std, -2.0, 2.0), split);
}

}  // namespace

Linear block_linear(const ParallelDims& dims, int64_t layer, std::string_view name, int64_t out, int64_t in,
                    double std, int split) {
  return Linear(make_weight(layer, name, out, in, std, split), nullptr, dims.tensor_group(), dims.chunked);
}

Linear undivided_linear(int64_t layer, std::string_view name, int64_t out, int64_t in, double std) {
  return Linear(make_weight(layer, name, out, in, std, /*split=*/{}));
}

double residual_std(const ModelArgs& args, int64_t layer) {
  const int64_t depth = args.depth_init ? layer + 1 : args.n_layers;
  return 0.02 / std::sqrt(2.0 * static_cast<double>(depth));
}

}  // namespace hyperion::models
