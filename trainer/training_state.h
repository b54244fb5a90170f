// A job's state as its checkpoints hold it: every part of it, and what else a save says.
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

// What the parts describe; all of it outlives them.
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
// Every part of the state, in the order in which it is loaded.
StateComponents state_components(const StateSources& sources);

// What the job loads and saves. What `chosen`, the checkpoint to load or null, keeps of an imported model is
// kept on. All other arguments outlive it.
checkpointing::CheckpointedState checkpointed_state(const Job& job, const checkpointing::ResumePlan& plan,
                                                    const checkpointing::ChosenCheckpoint* chosen,
                                                    const StateComponents& components,
                                                    checkpoint::MemoryMover& mover);

// For --dump_state_dict: names, types, shapes and how each tensor is sharded over the ranks, a line each:
// "... 8 shards x 1 replicas, dim 1 in 2, dim 0 in 4", where the cuts are in the order in which they apply.
std::string state_table(const StateComponents& components);

}  // namespace hyperion::trainer
