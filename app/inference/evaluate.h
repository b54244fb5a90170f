// Computes the token-weighted loss of a model on a data set.
#pragma once

#include <cstdint>
#include <string>

#include "app/inference/engine.h"
#include "data/loader.h"

namespace hyperion::inference {

struct Evaluation {
  double loss = 0;        // mean cross-entropy over all tokens, in nats
  double perplexity = 0;  // exp(loss)
  int64_t tokens = 0;     // predicted tokens
  int64_t sequences = 0;  // with at least one predicted token
  double seconds = 0;
};

// Reads `loader` (one pass over the data, one rank) to its end, or `max_batches` of it (0: all). Throws
// Error(kBadData) if there is no token to predict, and Error(kNonFinite) if the loss is not finite.
Evaluation evaluate(InferenceEngine& engine, data::DataLoader& loader, int64_t max_batches = 0);

// Format the result as a table, and as one JSON object.
std::string evaluation_table(const Evaluation& evaluation, const std::string& checkpoint,
                             const std::string& data);
std::string evaluation_json(const Evaluation& evaluation, const std::string& checkpoint,
                            const std::string& data);

}  // namespace hyperion::inference
