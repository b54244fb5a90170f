// Simulates when each action of a pipeline schedule runs for given costs: how long a step takes, how much
// of it is bubble, and whether it deadlocks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// The time, in seconds or any unit, that an action takes. A transfer costs what its send costs. Unshards,
// reshards and reductions overlap with computation and cost nothing.
using PipelineCosts = std::function<double(const PipelineAction&)>;
PipelineCosts uniform_costs(double forward, double backward, double input_gradient, double weight_gradient,
                            double transfer);
// The costs with which a training schedule is lowered and planned, in units of a stage's forward; a
// transfer costs little. `recomputes` says that backwards recompute their blocks' forwards.
PipelineCosts planned_costs(bool recomputes);

enum class TransferStreams {
  kUnlimited,     // a transfer starts when its data exists; the list need not name it
  kOne,           // a rank's transfers run in list order, each when both ranks have reached it
  kPerOp,         // one stream for activations, one for gradients
  kPerDirection,  // one stream to higher ranks, one to lower ranks
};

struct PipelineTiming {
  std::vector<std::vector<double>> start,
      end;             // indexed like PipelineSchedule::ranks; transfers have none with kUnlimited
  double seconds = 0;  // the end of the last action
  double bubble = 0;   // fraction of all ranks' time in which they do not compute
  // A rank's next action that never runs: rank, position in its list, and a sentence that follows the chain
  // of waits.
  struct Deadlock {
    int rank;
    size_t position;
    std::string reason;
  };
  std::optional<Deadlock> deadlock;
};

// Each action starts when the rank's previous computation is done and its input has arrived. `schedule` has
// every action at most once, on the rank of its stage.
PipelineTiming simulate(const PipelineSchedule& schedule, const PipelineCosts& costs,
                        TransferStreams streams = TransferStreams::kUnlimited);

}  // namespace hyperion::parallel
