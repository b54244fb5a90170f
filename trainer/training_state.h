// Assembles a job's state for its checkpoints: the state components and the other contents of a save.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/build/model_and_optimizer.h"
#include "trainer/checkpointing/checkpointer.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/job.h"

namespace hyperion::trainer {

using StateComponents = std::vector<std::unique_ptr<checkpoint::StateComponent>>;

// The objects that the components describe. They outlive the components.
struct StateSources {
  const ModelAndOptimizer& model;
  const parallel::Mesh& mesh;
  int rank;
  at::Device device;
  checkpointing::TrainState& state;
  data::DataLoader& loader;
  const checkpointing::ResumePlan& plan;
  const config::JobConfig& configured;
};
// Returns every component of the state, in load order.
StateComponents state_components(const StateSources& sources);

// Returns the state that the job loads and saves. It carries on the imported settings of `chosen`, the
// checkpoint to load or null. All other arguments outlive it.
checkpointing::CheckpointedState checkpointed_state(const Job& job, const checkpointing::ResumePlan& plan,
                                                    const checkpointing::ChosenCheckpoint* chosen,
                                                    const StateComponents& components,
                                                    checkpoint::MemoryMover& mover);

// Lists, for --dump_state_dict, name, dtype, shape and sharding of each tensor, one per line: "... 8 shards x
// 1 replicas, dim 1 in 2, dim 0 in 4". The cuts are in the order in which they apply.
std::string state_table(const StateComponents& components);

}  // namespace hyperion::trainer
