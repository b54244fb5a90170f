// Validation computes the token-weighted loss on held-out data. Every run uses the same sequences; with
// validation.sequences every mesh uses the same ones too.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/job_data.h"
#include "trainer/engine/batch_mover.h"
#include "trainer/engine/schedule.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

class Validator {
 public:
  Validator(const config::JobConfig::Validation& options, const Runtime& runtime,
            std::vector<ValidationLoader> data);

  // Validation is due after step 1 and after every multiple of validation.freq.
  bool due(int64_t step) const { return options_.enable && (step == 1 || step % options_.freq == 0); }

  struct Result {
    double loss = 0;     // mean over all valid tokens of all ranks and data sets
    int64_t tokens = 0;  // that this rank has seen
    std::vector<std::pair<std::string, double>> sources{};  // the loss of each source by its name
  };
  // `rows` is the size of a microbatch; the rows of a batch are a multiple of it.
  Result run(ScheduleRunner& schedule, BatchMover& mover, int64_t rows);

 private:
  // Sums over one data set and all ranks.
  struct Sums {
    double loss = 0, tokens = 0;
  };
  Sums run(const ValidationLoader& data, ScheduleRunner& schedule, BatchMover& mover, int64_t rows,
           Result& result);

  config::JobConfig::Validation options_;
  bool warned_ = false;  // has warned that the data hold fewer sequences
  const Runtime& runtime_;
  std::vector<ValidationLoader> data_;
};

}  // namespace hyperion::trainer
