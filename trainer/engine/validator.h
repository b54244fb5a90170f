// Validation computes the token-weighted loss on held-out data. Every run uses the same sequences; with
// validation.sequences every mesh uses the same ones too.
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

  // Validation is due after step 1 and after every multiple of validation.freq.
  bool due(int64_t step) const { return options_.enable && (step == 1 || step % options_.freq == 0); }

  struct Result {
    double loss = 0;     // mean over all valid tokens of all ranks
    int64_t tokens = 0;  // that this rank has seen
  };
  // `rows` is the size of a microbatch; the rows of a batch are a multiple of it.
  Result run(ScheduleRunner& schedule, BatchMover& mover, int64_t rows);

 private:
  config::JobConfig::Validation options_;
  bool warned_ = false;  // has warned that the data hold fewer sequences
  const Runtime& runtime_;
  std::unique_ptr<data::DataLoader> loader_;
};

}  // namespace hyperion::trainer
