// When each action of a pipeline schedule runs, given what actions cost: how long a step takes, how much of
// it is bubble, and whether it ends at all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// Seconds (or any unit) that an action takes. Of a transfer only its send is asked. Gathers, frees and
// reductions run under the computation and count nothing.
using PipelineCosts = std::function<double(const PipelineAction&)>;
PipelineCosts uniform_costs(double forward, double backward, double input_gradient, double weight_gradient,
                            double transfer);
// What a trained schedule is lowered and planned with, in units of a stage's forward, of which a transfer
// takes little. `recomputes`: backwards run their blocks' forwards once more.
PipelineCosts planned_costs(bool recomputes);

enum class TransferStreams {
  kUnlimited,     // a transfer starts when its data exists; the list need not name it
  kOne,           // a rank's transfers run in the order of its list, each when both ranks have got to it
  kPerOp,         // activations and gradients each have a stream
  kPerDirection,  // transfers to higher and to lower ranks each have a stream
};

struct PipelineTiming {
  std::vector<std::vector<double>> start,
      end;             // as PipelineSchedule::ranks; transfers too, but for kUnlimited
  double seconds = 0;  // the end of the last action
  double bubble = 0;   // the part of all ranks' time in which they do not compute
  // Why a rank's next action never runs: rank, position in its list, and a sentence that follows the waits.
  struct Stuck {
    int rank;
    size_t position;
    std::string reason;
  };
  std::optional<Stuck> stuck;
};

// Each action starts when the rank's computation before it is done and its input is there. `schedule` has
// every action at most once, on the rank of its stage.
PipelineTiming simulate(const PipelineSchedule& schedule, const PipelineCosts& costs,
                        TransferStreams streams = TransferStreams::kUnlimited);

}  // namespace hyperion::parallel
