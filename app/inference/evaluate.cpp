#include "app/inference/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "trainer/data/job_data.h"
#include "trainer/engine/batch_mover.h"

namespace hyperion::inference {

Evaluation evaluate(InferenceEngine& engine, data::DataLoader& loader, int64_t max_batches) {
  const auto begin = std::chrono::steady_clock::now();
  Evaluation result;
  double sum = 0;
  Progress progress("eval", static_cast<uint64_t>(max_batches), "batches");
  for (int64_t i = 0; max_batches == 0 || i < max_batches; ++i) {
    const std::optional<data::Batch> batch = loader.next();
    if (!batch) break;
    const int64_t tokens = trainer::valid_tokens(*batch);
    if (tokens == 0) continue;
    sum += engine.loss_sum(*batch);
    result.tokens += tokens;
    progress.update(static_cast<uint64_t>(i) + 1);
    result.sequences += trainer::sequences_with_labels(*batch);
  }
  if (result.tokens == 0) throw_data("eval: the data set holds no token to predict");
  result.loss = sum / static_cast<double>(result.tokens);
  if (!std::isfinite(result.loss))
    throw_non_finite(
        "eval: the loss is {} although the weights are finite: they are too large to compute "
        "with",
        result.loss);
  result.perplexity = std::exp(result.loss);
  result.seconds = seconds_since(begin);
  return result;
}

std::string evaluation_table(const Evaluation& evaluation, const std::string& checkpoint,
                             const std::string& data) {
  return fmt::format(
      "checkpoint  {}\ndata        {}\nloss        {:.6f}\nperplexity  {:.4f}\ntokens      {}\n"
      "sequences   {}\nspeed       {:.0f} tokens/s ({:.1f} s)\n",
      checkpoint, data, evaluation.loss, evaluation.perplexity, evaluation.tokens, evaluation.sequences,
      static_cast<double>(evaluation.tokens) / std::max(evaluation.seconds, 1e-9), evaluation.seconds);
}

std::string evaluation_json(const Evaluation& evaluation, const std::string& checkpoint,
                            const std::string& data) {
  const nlohmann::ordered_json json = {
      {"checkpoint", checkpoint},      {"data", data},
      {"loss", evaluation.loss},       {"perplexity", evaluation.perplexity},
      {"tokens", evaluation.tokens},   {"sequences", evaluation.sequences},
      {"seconds", evaluation.seconds},
  };
  return json.dump(2) + "\n";
}

}  // namespace hyperion::inference
