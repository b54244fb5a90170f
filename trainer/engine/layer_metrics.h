// reduce_layer_metrics() turns the layers' reports of a step (models/layers/layer_metrics.h) into metrics.
#pragma once

#include <c10/core/Device.h>

#include "models/layers/layer_metrics.h"
#include "parallel/comm/communicator.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::trainer {

// Returns each tag with its value, equal on every rank; waits for the device. Collective if anything was
// reported, and always with several pipeline stages. `ranks` cover the job; `stages` is the pipeline's group,
// whose layers report different tags.
metrics::MetricList reduce_layer_metrics(const models::LayerMetrics& recorded,
                                         const parallel::ReduceChain& ranks, parallel::Communicator& stages,
                                         at::Device device);

}  // namespace hyperion::trainer
