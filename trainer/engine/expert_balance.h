// Expert biases balance the tokens over the experts without an auxiliary loss (arXiv 2408.15664). Once per
// step the bias of an expert below the mean token count rises by a constant, and the bias of an expert above
// it falls.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/layer_metrics.h"
#include "models/parts/experts/moe.h"
#include "parallel/fsdp/fsdp.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::trainer {

// Adds coefficient * sign(mean - count), minus the mean of that term, to the biases of each block of this
// rank's stage whose coefficient is not 0, and resets the counts. The counts are all-reduced as integers over
// the ranks of the stage that have counted different tokens: the shard and replicate groups, and the tensor
// parallel group if each of its ranks counts its own part (ExpertBalance::counts_local_tokens). If `skip`
// (0-dim) is 1, the step is skipped and the biases stay. Collective over these groups; nothing waits for the
// device.
void update_expert_biases(const std::vector<models::ExpertBalancePtr>& balances,
                          const parallel::FsdpContext& ranks, const at::Tensor& skip);

// Reports, for each block, the token counts of the busiest and the idlest expert divided by the mean, and the
// numbers of both experts. With expert parallelism it also reports the most rows that a rank received, its
// own tokens included. Call it in a logged step, before the update. It resets the counts of blocks that have
// no update. `expert_ranks` is the expert parallel group, or null. Collective; nothing waits for the device.
void record_expert_loads(const std::vector<models::ExpertBalancePtr>& balances,
                         const parallel::FsdpContext& ranks, parallel::Communicator* expert_ranks,
                         models::LayerMetrics& reported);
// Keeps only the metrics of the block whose busiest expert is furthest from the mean, and adds the block's
// number.
metrics::MetricList keep_worst_block(metrics::MetricList reported);

// Warns once when, in each of the last logged steps, the busiest expert of the worst block had nearly the
// most tokens that are possible, `experts` / `top_k` times the mean. It warns again if this recurs after a
// recovery.
class CollapseWatch {
 public:
  CollapseWatch(int64_t experts, int64_t top_k, double coefficient)
      : highest_(static_cast<double>(experts) / static_cast<double>(top_k)), coefficient_(coefficient) {}

  // `metrics` is the result of keep_worst_block() for one logged step. Returns "" if there is nothing to warn
  // of.
  std::string add(const metrics::MetricList& metrics);

 private:
  double highest_, coefficient_;
  int steps_ = 0;  // consecutive logged steps near the limit
};

}  // namespace hyperion::trainer
