// What layers reported of a step (models/layer_metrics.h), as metrics.
#pragma once

#include "models/layer_metrics.h"
#include "parallel/comm/communicator.h"
#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::trainer {

// Each tag with its number, the same on every rank; waits for the device. Collective where anything was
// reported. `ranks`: all n_ranks of the job.
metrics::MetricList reduce_layer_metrics(const models::LayerMetrics& recorded,
                                         const parallel::ReduceChain& ranks, int n_ranks);

}  // namespace hyperion::trainer
