// What layers reported of a step (models/layers/layer_metrics.h), as metrics.
#pragma once

#include <c10/core/Device.h>

#include "models/layers/layer_metrics.h"
#include "parallel/comm/communicator.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::trainer {

// Each tag with its number, the same on every rank; waits for the device. Collective where anything was
// reported, and with several pipeline stages always. `ranks`: all of the job; `stages`: of a pipeline, whose
// layers report other tags.
metrics::MetricList reduce_layer_metrics(const models::LayerMetrics& recorded,
                                         const parallel::ReduceChain& ranks, parallel::Communicator& stages,
                                         at::Device device);

}  // namespace hyperion::trainer
