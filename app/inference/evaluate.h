// The loss of a model on a data set, weighted by tokens.
#pragma once

#include <cstdint>
#include <string>

#include "app/inference/engine.h"
#include "data/loader.h"

namespace hyperion::inference {

struct Evaluation {
  double loss = 0;        // mean cross-entropy over all tokens, in nats
  double perplexity = 0;  // exp(loss)
  int64_t tokens = 0;     // predicted ones
  int64_t sequences = 0;  // with at least one of them
  double seconds = 0;
};

// Reads `loader` (one pass over the data, one rank) to its end, or `max_batches` of it (0: all). Throws
// Error(kBadData) when there is nothing to predict and Error(kNonFinite) when the loss is no finite number.
Evaluation evaluate(InferenceEngine& engine, data::DataLoader& loader, int64_t max_batches = 0);

// Human-readable, and as one JSON object.
std::string evaluation_table(const Evaluation& evaluation, const std::string& checkpoint,
                             const std::string& data);
std::string evaluation_json(const Evaluation& evaluation, const std::string& checkpoint,
                            const std::string& data);

}  // namespace hyperion::inference
