// One training job, in order: mesh, model, shard, initialise, optimizer, data, then the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/config/load.h"
#include "trainer/data_setup.h"
#include "trainer/finite_guard.h"
#include "trainer/metrics/memory.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/profiler.h"
#include "trainer/optim/adam.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/runtime.h"
#include "trainer/unit_walk.h"
#include "trainer/validator.h"

namespace hyperion {

class Trainer {
 public:
  // `command` is the argv, for the run's record. Checks the configuration as a whole before it touches a
  // device. Collective: every rank constructs its Trainer.
  Trainer(const ResolvedConfig& resolved, const std::vector<std::string>& command);
  ~Trainer();

  // Trains to training.steps, or until a signal asks to stop. Throws Error for everything that ends a job
  // early.
  ExitCode run();

 private:
  struct StepData;  // the microbatches of one step
  void agree(const ResolvedConfig& resolved) const;
  void make_metrics(const ResolvedConfig& resolved, const std::vector<std::string>& command);
  void make_profiler();
  void initialise_weights();
  StepData fetch();
  void train_step(int64_t step);
  void log_step(int64_t step, const std::vector<at::Tensor>& losses, const StepData& data,
                const at::Tensor& norm);
  void validate(int64_t step);
  void dump_gradients(const std::string& folder) const;

  const JobConfig config_;
  const ModelArgs model_args_;
  const DataSetup data_;
  const Runtime runtime_;
  uint64_t seed_;
  Transformer model_;
  FsdpContext fsdp_;
  UnitWalk walk_;
  std::vector<at::Tensor> grads_;  // every sharded gradient of this rank, by group
  Adam optimizer_;
  LrSchedule schedule_;
  std::unique_ptr<DataLoader> loader_;
  BatchMover mover_;
  Validator validator_;
  FiniteGuard guard_;
  std::unique_ptr<MemoryMonitor> memory_;
  std::unique_ptr<MetricsLogger> metrics_;
  std::unique_ptr<Profiler> profiler_;
  int64_t microbatches_ = 1;  // a step
  int64_t tokens_seen_ = 0;
  int stop_ = 0;  // the StopSignal that all ranks agreed on
};

}  // namespace hyperion
