// Muon (Jordan et al., 2024) updates the matrices of blocks by the orthogonalized momentum; AdamW updates the
// other parameters. The notation and order of operations are torch.optim.Muon's, with learning rate gamma and
// weight decay lambda:
//
//   m <- mu m + (1 - mu) g             g' = (1 - mu) g + mu m (Nesterov), or m
//   theta <- (1 - gamma lambda) theta - gamma r NS(g')
//
// The update does not depend on the mesh: the shards of g' go to the matrix's owner, which computes NS(g') of
// the whole matrix, and its parts come back (matrix_exchange.h). Replicas (HSDP) all do the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trainer/optim/adam.h"
#include "trainer/optim/matrix_exchange.h"
#include "trainer/optim/newton_schulz.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/parameter_groups.h"

namespace hyperion::optim {

class Muon final : public Optimizer {
 public:
  Muon(const std::vector<parallel::ShardedParameterPtr>& parameters,
       const config::JobConfig::Optimizer& options, const OptimizerGroups& groups, uint64_t seed = 0);

  // Every matrix has its momentum.
  static std::vector<StateKind> kinds(const config::JobConfig::Optimizer& options) {
    return {{"momentum_buffer", state_dtype(options)}};
  }

  void step(double lr, const at::Tensor& skip,
            const std::optional<at::Tensor>& divisor = std::nullopt) override;
  std::vector<std::pair<const char*, checkpoint::Object>> settings(const Parameter& parameter) const override;

  // The exchanges, in their order in a step.
  const std::vector<std::unique_ptr<MatrixExchange>>& exchanges() const { return exchanges_; }

 private:
  std::vector<StateKind> kinds_of_trainable(const Parameter& parameter) const override;
  // Makes m and g' of momenta and gradients.
  void update_momenta(const at::Tensor& skip);
  void plan(Domain domain, const MatrixGroups& groups);
  void add_results(MatrixExchange& exchange, double lr, const at::Tensor& not_skipped);

  config::JobConfig::Optimizer options_;
  std::vector<NewtonSchulzStep> steps_;
  std::vector<parallel::ShardedParameterPtr> parameters_;  // Muon's
  std::vector<ParameterSettings> settings_;                // of each
  std::vector<at::Tensor> masters_, grads_, momenta_;      // of those with elements here
  std::vector<ParameterSettings> held_settings_;           // of the same
  kernels::RoundedMomentumTensors rounded_;                // the same, of momenta in bf16
  std::vector<std::unique_ptr<MatrixExchange>> exchanges_;
  std::optional<Adam> adam_;  // of the others
};

// Returns r of an update with `rows` x `columns` elements (docs/optimizers.md).
double muon_scale(config::MuonScale scale, int64_t rows, int64_t columns);

}  // namespace hyperion::optim
