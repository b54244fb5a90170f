#include "trainer/engine/layer_metrics.h"

#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/ops/full.h>

namespace hyperion::trainer {

using Reduction = models::LayerMetrics::Reduction;

TEST_CASE("values of a tag are added up, averaged or compared, and without any no rank is asked") {
  models::LayerMetrics recorded;
  for (const double value : {3.0, -5.0}) {
    const at::Tensor scalar = at::full({}, value).requires_grad_();
    recorded.record("sum", Reduction::kSum, scalar);
    recorded.record("mean", Reduction::kMean, scalar);
    recorded.record("rms", Reduction::kRootMeanSquare, scalar);
    recorded.record("max", Reduction::kMax, scalar);
  }
  const auto group = parallel::make_solo_communicator("world/0", 0);
  CHECK(reduce_layer_metrics(recorded, parallel::ReduceChain({group.get()}), *group, at::kCPU) ==
        metrics::MetricList{{"max", 3}, {"mean", -1}, {"rms", std::sqrt(17.0)}, {"sum", -2}});
  CHECK(reduce_layer_metrics({}, parallel::ReduceChain({nullptr}), *group, at::kCPU).empty());
}

}  // namespace hyperion::trainer
