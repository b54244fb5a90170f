// One training job, in order: mesh, model, shard, initialise, optimizer, data, then the loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/checkpointing/checkpointer.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/config/load.h"
#include "trainer/finite_guard.h"
#include "trainer/fsdp_model.h"
#include "trainer/metrics/memory.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/profiler.h"
#include "trainer/optim/adam.h"
#include "trainer/optim/ema.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/runtime/runtime.h"
#include "trainer/setup/data_setup.h"
#include "trainer/setup/float8_setup.h"
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

  // The state's names, types, shapes and how each lies over the ranks, a line each.
  std::string state_table() const;

 private:
  struct StepData;  // the microbatches of one step
  void agree() const;
  Checkpointer open_checkpoints() const;
  void make_components();
  void load_checkpoint();
  void continue_data();
  void initialise_weights();
  std::string seed_origin() const;
  void log_start() const;
  void check_float8();
  double learning_rate(int64_t step) const;  // of 1-based `step`
  StepData fetch();
  bool train_step(int64_t step);
  void log_step(int64_t step, const std::vector<at::Tensor>& losses, const StepData& data,
                const at::Tensor& norm);
  void validate(int64_t step);
  void dump_gradients(const std::string& folder) const;
  ExitCode train();
  ExitCode stopped(int64_t step, bool trained);

  const ResolvedConfig configured_;
  const ModelArgs model_args_;
  const DataSetup data_;
  const Runtime runtime_;
  const uint64_t configured_seed_;  // debug.seed, or one that rank 0 drew
  std::unique_ptr<DataLoader> loader_;
  Checkpointer checkpointer_;
  const ResumePlan plan_;  // what the configuration and the checkpoint that is loaded come to
  const JobConfig& config_ = plan_.config;
  Transformer model_;
  const Float8Setup float8_;
  FsdpContext fsdp_;
  FsdpModel fsdp_model_;
  std::vector<at::Tensor> grads_;  // every sharded gradient of this rank, by group
  Adam optimizer_;
  std::unique_ptr<Ema> ema_;  // null when off
  LrSchedule schedule_;
  BatchMover mover_;
  Validator validator_;
  FiniteGuard guard_;
  TrainState state_;
  std::vector<std::unique_ptr<StateComponent>> components_;
  DeviceMover memory_mover_;
  std::unique_ptr<MemoryMonitor> memory_;
  std::unique_ptr<MetricsLogger> metrics_;
  std::unique_ptr<Profiler> profiler_;
  int64_t microbatches_ = 1;  // a step
  int stop_ = 0;              // the StopSignal that all ranks agreed on
  bool save_failed_ = false;  // on some rank, in the background
  int64_t resumed_step_ = 0;  // until the first logged step of a resumed run
};

}  // namespace hyperion
