// The ranks that share the work of one batch with this one. Without any (the default) every layer is whole on
// this rank.
#pragma once

#include "base/exchange.h"

namespace hyperion::models {

struct Regions {
  // Tensor parallelism: its ranks divide every matrix (Parameter::split) and, between matrices, the sequence.
  // Outlives the model; null: one rank.
  Exchange* tensor = nullptr;
  // Whether each rank computes the logits and the loss of its own part of the vocabulary; else logits are
  // gathered.
  bool loss_parallel = true;
};

}  // namespace hyperion::models
