// The table that embedding and head of a model share, where these are pipeline stages of two ranks: both hold
// a copy of it, with moments and average. The copies start equal and are updated by the sum of both
// gradients, so they stay equal. For norm, checkpoint and digest there is one, the first stage's.
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
  // `ranks`: those with the first and the last stage, in that order, that hold the same rows; outlives it.
  // `stage`: this rank's.
  TiedTable(parallel::Communicator& ranks, const Stage& stage);

  parallel::Communicator& ranks() const { return ranks_; }
  const parallel::ShardedParameter& table() const { return *table_; }

  // Once per step, when all reductions are complete and before the norm.
  void sum_gradients(int64_t step) const;
  // After a load, which reads the first stage's copy alone: gives the last stage the values of the master
  // and of `others`, which are of the table too.
  void copy_from_first(const std::vector<at::Tensor>& others) const;

 private:
  parallel::Communicator& ranks_;
  parallel::ShardedParameterPtr table_;
};

}  // namespace hyperion::trainer
