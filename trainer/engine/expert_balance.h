// Evens out how many tokens each expert is sent, without a loss of its own (arXiv 2408.15664): once a step
// the bias of an expert that got fewer than the mean rises by a constant, and that of one that got more
// falls.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/layer_metrics.h"
#include "models/parts/experts/moe.h"
#include "parallel/fsdp/fsdp.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::trainer {

// bias += coefficient * sign(mean - count), minus the mean of that, for each block of this rank's stage whose
// coefficient is not 0. Its counts begin at 0 after it; they are added up as integers over the ranks of the
// stage that have counted other tokens: those that shard its parameters, their replicas, and tensor parallel
// ranks where each counts its own (ExpertBalance::counts_own_part). `skip`: 0-dim, 1 where the step is not
// made: the bias stays. Collective over these; nothing waits for the device.
void update_expert_biases(const std::vector<models::ExpertBalancePtr>& balances,
                          const parallel::FsdpContext& ranks, const at::Tensor& skip);

// Reports of each block, in a step that is logged and before the update, the tokens of its busiest and of its
// idlest expert over the mean, and which these are; and, with expert parallelism, the rows that the rank with
// the most was sent, those of its own tokens among them. expert_ranks: those that divide the experts; null:
// no expert parallelism. Where nothing is updated, counts begin at 0 after it. Collective; nothing waits for
// the device.
void record_expert_loads(const std::vector<models::ExpertBalancePtr>& balances,
                         const parallel::FsdpContext& ranks, parallel::Communicator* expert_ranks,
                         models::LayerMetrics& reported);
// Of what all blocks reported leaves the block whose busiest expert is furthest from the mean, with its
// number.
metrics::MetricList keep_worst_block(metrics::MetricList reported);

// Says once when the busiest expert of the worst block has had nearly as many tokens as are possible, all of
// `experts` / `top_k` times the mean, in each of the last logged steps; and again after it has recovered.
class CollapseWatch {
 public:
  CollapseWatch(int64_t experts, int64_t top_k, double coefficient)
      : highest_(static_cast<double>(experts) / static_cast<double>(top_k)), coefficient_(coefficient) {}

  // `metrics`: what keep_worst_block() left of one logged step. "" for nothing to say.
  std::string add(const metrics::MetricList& metrics);

 private:
  double highest_, coefficient_;
  int steps_ = 0;  // logged ones in a row
};

}  // namespace hyperion::trainer
