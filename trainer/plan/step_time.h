// Predicts the time of a step from its work, a card and the links between its ranks, as a sum of families
// (trainer/plan/step_work.h). Pure. What is assumed is in docs/notes/step_budget.md.
#pragma once

#include <array>
#include <functional>

#include "parallel/mesh.h"
#include "trainer/plan/card.h"
#include "trainer/plan/step_work.h"

namespace hyperion::trainer {

// Cluster describes where the ranks of a job are: each GPU of a node has links of its own to the others and
// an adapter to the network.
struct Cluster {
  int gpus_per_node = 8;
  double network = 400e9 / 8;  // bytes per second of a GPU, each way
};

// Links are those between the ranks of a job, and the cards that they join.
struct Links {
  const parallel::Mesh& mesh;
  const Cluster& cluster;
  const Card& card;
};

struct StepTime {
  std::array<double, static_cast<size_t>(Family::kCount)> seconds{};
  double& of(Family family) { return seconds[static_cast<size_t>(family)]; }
  double of(Family family) const { return seconds[static_cast<size_t>(family)]; }
  double total() const;
};

// The seconds of a pipeline's list of actions in units of a stage's forward, where a transfer takes
// `transfer` of them: {bubble, exposed transfers}, besides the units in which a rank computes.
struct PipelineSeconds {
  double bubble = 0, transfers = 0;
  double units = 1;  // in which a rank computes
};
using PipelineTimes = std::function<PipelineSeconds(double transfer)>;

// `pipeline` is empty without a pipeline.
StepTime step_time(const StepWork& work, const Links& links, const PipelineTimes& pipeline = {});

// Bytes per second that a rank of the group sends in rings as NCCL makes them: a ring passes through all
// members on a node before it leaves the node, so what leaves the node uses the adapters of all of them.
double ring_rate(parallel::MeshDim group, const Links& links);

}  // namespace hyperion::trainer
