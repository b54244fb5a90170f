#include "trainer/layer_metrics.h"

#include <cmath>

#include <ATen/ops/stack.h>

namespace hyperion::trainer {
namespace {

using Reduction = models::LayerMetrics::Reduction;

at::Tensor reduce_values(const models::LayerMetrics::Metric& metric) {
  const at::Tensor values = at::stack(metric.values).to(at::kDouble);
  if (metric.reduction == Reduction::kMax) return values.max();
  if (metric.reduction == Reduction::kSum) return values.sum();
  return (metric.reduction == Reduction::kMean ? values : values.square()).mean();
}

}  // namespace

metrics::MetricList reduce_layer_metrics(const models::LayerMetrics& recorded,
                                         const parallel::ReduceChain& ranks, int n_ranks) {
  if (recorded.by_tag.empty()) return {};
  std::vector<at::Tensor> values;
  for (const auto& [tag, metric] : recorded.by_tag) values.push_back(reduce_values(metric));
  const at::Tensor sums = at::stack(values), maxima = sums.clone();
  ranks.all_reduce_sum(sums);
  ranks.all_reduce_max(maxima);
  const at::Tensor on_host = at::stack({sums, maxima}).cpu();
  const auto numbers = on_host.accessor<double, 2>();
  metrics::MetricList list;
  for (const auto& [tag, metric] : recorded.by_tag) {
    const auto i = static_cast<int64_t>(list.size());
    const double mean = numbers[0][i] / n_ranks;
    list.emplace_back(tag, metric.reduction == Reduction::kMax              ? numbers[1][i]
                           : metric.reduction == Reduction::kSum            ? numbers[0][i]
                           : metric.reduction == Reduction::kRootMeanSquare ? std::sqrt(mean)
                                                                            : mean);
  }
  return list;
}

}  // namespace hyperion::trainer
