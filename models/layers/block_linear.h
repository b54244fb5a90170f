// The linear layers of a block: their names, how they are divided over ranks, and their initial weights.
#pragma once

#include <string_view>

#include "models/flavors/model_args.h"
#include "models/layers/linear.h"
#include "models/layers/parallel_dims.h"

namespace hyperion::models {

// What Parameter::split says of a linear layer's weight [out, in].
inline constexpr int kSplitByRows = 0, kSplitByColumns = 1;

// "layers.LAYER.NAME.weight" [out, in], drawn from a normal distribution of that deviation, within +-2.
Linear block_linear(const ParallelDims& dims, int64_t layer, std::string_view name, int64_t out, int64_t in,
                    double std = 0.02, int split = kSplitByRows);

// The same of a weight that every tensor parallel rank has in full (Parameter::split is unset), for the rows
// of its part of every sequence.
Linear undivided_linear(int64_t layer, std::string_view name, int64_t out, int64_t in, double std = 0.02);

// The deviation of layers whose results are added to the residual stream: smaller the deeper they are, or the
// deeper the model is (ModelArgs::depth_init).
double residual_std(const ModelArgs& args, int64_t layer);

}  // namespace hyperion::models
