// A tied table is the weight that embedding and head share. If they are pipeline stages of two ranks, both
// ranks hold a copy with optimizer states and average. The copies start equal and stay equal, because both
// are updated by the sum of both gradients. Norm, checkpoint and digest use the first stage's copy only.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/engine/stage.h"

namespace hyperion::trainer {

class TiedTable {
 public:
  // `ranks` is the process group of the rank with the first stage and the rank with the last stage, in that
  // order; both hold the same rows. It outlives this object.
  TiedTable(parallel::Communicator& ranks, const Stage& stage);

  parallel::Communicator& ranks() const { return ranks_; }
  const parallel::ShardedParameter& table() const { return *table_; }

  // All-reduces the table's gradient over both copies. Call it once per step, when all reductions are
  // complete and before the norm.
  void sum_gradients(int64_t step) const;
  // Copies the master and `others`, the table's other tensors, from the first stage to the last. Call it
  // after a load, which reads the first stage's copy only.
  void copy_from_first(const std::vector<at::Tensor>& others) const;

 private:
  parallel::Communicator& ranks_;
  parallel::ShardedParameterPtr table_;
};

}  // namespace hyperion::trainer
