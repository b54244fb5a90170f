// Counts what Muon computes and exchanges in a step of one rank, by the plan of owners that the optimizer
// runs (trainer/optim/matrix_plan.h, exchange_layout.h). Pure; it makes no tensors.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"
#include "trainer/plan/job_size.h"

namespace hyperion::trainer {

// The bytes of gradients that a rank exchanges in a group. As many bytes of results go the opposite way.
struct MuonExchange {
  parallel::MeshDim group;
  double sent = 0;      // bytes of gradients to owners of the group, this rank itself left out
  double received = 0;  // bytes of gradients from other ranks to this owner
  double step() const { return sent + received; }  // bytes that this rank sends in a step, both ways together
};

struct MuonWork {
  int rank = 0;                           // in the first pipeline rank's place
  std::vector<MuonExchange> exchanges{};  // of groups with more than one rank
  int rounds = 0;                         // exchanges that the matrices are dealt into
  double matrices = 0;                    // that this rank owns
  double flops = 0;                       // of this rank's Newton-Schulz iterations
  double mean_flops = 0;                  // of all ranks that have the same stages
  double moved = 0;                       // bytes that the iterations read and write
  double buffers = 0;                     // bytes of the exchanges' buffers, which live as long as the job
  double results = 0;                     // bytes of one round's results and of one iteration

  double load() const { return mean_flops > 0 ? flops / mean_flops : 1; }
  double step_bytes() const;
};

// Returns the work of a rank, or of the owner with the most FLOPs. `stages` are those of the rank's pipeline
// rank. Expert parallel ranks have as many experts each. Returns nullopt if Muon updates nothing.
std::optional<MuonWork> muon_work(const config::JobConfig& config, const models::ModelDescription& model,
                                  const parallel::Mesh& mesh, std::span<const ModelStage> stages,
                                  std::optional<int> rank = {});

}  // namespace hyperion::trainer
