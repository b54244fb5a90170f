// Validation: the loss on held-out data, weighted by tokens, the same sequences every time, and with
// validation.sequences on every mesh.
#pragma once

#include <memory>

#include "trainer/data/job_data.h"
#include "trainer/engine/batch_mover.h"
#include "trainer/engine/schedule.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

class Validator {
 public:
  Validator(const config::JobConfig::Validation& options, const Runtime& runtime,
            std::unique_ptr<data::DataLoader> loader);

  // After step 1 and every multiple of validation.freq.
  bool due(int64_t step) const { return options_.enable && (step == 1 || step % options_.freq == 0); }

  struct Result {
    double loss = 0;     // mean over all valid tokens of all ranks
    int64_t tokens = 0;  // seen by this rank
  };
  // `rows`: of a microbatch; the batches have a multiple of them.
  Result run(ScheduleRunner& schedule, BatchMover& mover, int64_t rows);

 private:
  config::JobConfig::Validation options_;
  bool warned_ = false;  // that the data hold fewer sequences
  const Runtime& runtime_;
  std::unique_ptr<data::DataLoader> loader_;
};

}  // namespace hyperion::trainer
