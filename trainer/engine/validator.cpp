#include "trainer/engine/validator.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"

namespace hyperion::trainer {

Validator::Validator(const config::JobConfig::Validation& options, const Runtime& runtime,
                     std::vector<ValidationLoader> data)
    : options_(options), runtime_(runtime), data_(std::move(data)) {}

Validator::Result Validator::run(ScheduleRunner& schedule, BatchMover& mover, int64_t rows) {
  Result result;
  Sums all;
  for (const ValidationLoader& data : data_) {
    const Sums sums = run(data, schedule, mover, rows, result);
    if (!data.name.empty()) result.sources.emplace_back(data.name, sums.loss / sums.tokens);
    all.loss += sums.loss;
    all.tokens += sums.tokens;
  }
  result.loss = all.loss / all.tokens;
  return result;
}

Validator::Sums Validator::run(const ValidationLoader& data, ScheduleRunner& schedule, BatchMover& mover,
                               int64_t rows, Result& result) {
  const std::optional<int64_t>& sequences = options_.sequences;
  data::DataLoader& loader = *data.loader;
  loader.reset();
  const bool counts = runtime_.dry_run || runtime_.mesh->counts_in_loss_groups(runtime_.rank());
  at::Tensor sums = at::zeros({3}, at::TensorOptions(at::kDouble));  // loss, valid tokens, sequences
  const uint64_t end = sequences ? static_cast<uint64_t>(*sequences) : std::numeric_limits<uint64_t>::max();
  Progress progress(data.name.empty() ? "validation" : "validation " + data.name,
                    static_cast<uint64_t>(sequences.value_or(std::max<int64_t>(options_.steps, 0))),
                    sequences ? "sequences" : "batches");
  // Every rank makes the same number of batches, because the all-gathers are collective.
  for (int64_t step = 0; (options_.steps < 0 || step < options_.steps) && loader.state().sequence < end;
       ++step) {
    std::optional<data::Batch> batch = loader.next();
    if (!batch) break;
    data::ignore_sequences_from(end, *batch);
    const auto microbatch = [&](size_t i) {
      return mover.move(*batch, static_cast<int64_t>(i) * rows, rows);
    };
    for (const at::Tensor& loss : schedule.losses(static_cast<size_t>(batch->rows / rows), microbatch))
      sums[0] += loss.to(at::kCPU, at::kDouble);
    if (counts) {
      sums[1] += static_cast<double>(valid_tokens(*batch));
      sums[2] += static_cast<double>(sequences_with_labels(*batch));
    }
    result.tokens += batch->rows * batch->seq_len;
    progress.update(sequences ? std::min(end, loader.state().sequence) : static_cast<uint64_t>(step) + 1);
  }
  at::Tensor total = sums.to(runtime_.device, runtime_.device.is_cpu() ? at::kDouble : at::kFloat);
  runtime_.groups->loss_groups().all_reduce_sum(total);
  total = total.to(at::kCPU, at::kDouble);
  if (total[1].item<double>() == 0.0)
    throw_data("validation: the data set{} holds no token to predict",
               data.name.empty() ? "" : " " + data.name);
  if (sequences && total[2].item<double>() < static_cast<double>(*sequences) && !warned_) {
    log_warning(
        "validation.sequences = {}, but the validation data{} hold {}: all of them are used, each once",
        *sequences, data.name.empty() ? "" : " " + data.name, total[2].item<double>());
    warned_ = true;
  }
  return {total[0].item<double>(), total[1].item<double>()};
}

}  // namespace hyperion::trainer
