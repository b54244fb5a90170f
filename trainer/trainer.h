// One training job, in order: what it is, what it continues, what trains; then the loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "trainer/build/model_and_optimizer.h"
#include "trainer/checkpointing/checkpointer.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/config/batch_ramp.h"
#include "trainer/config/load.h"
#include "trainer/data/job_data.h"
#include "trainer/engine/expert_balance.h"
#include "trainer/engine/step_agreement.h"
#include "trainer/engine/validator.h"
#include "trainer/job.h"
#include "trainer/metrics/metrics_logger.h"
#include "trainer/metrics/profiler.h"
#include "trainer/runtime/rank_monitor.h"
#include "trainer/runtime/signals.h"
#include "trainer/training_state.h"
#include "trainer/training_step.h"

namespace hyperion::trainer {

class Trainer {
 public:
  // `command` is the argv, for the run's record. Checks the configuration as a whole before it touches a
  // device. Collective: every rank constructs its Trainer.
  Trainer(const config::ResolvedConfig& resolved, const std::vector<std::string>& command);

  // Trains to training.steps, or until a signal asks to stop. Throws Error for everything that ends a job
  // early.
  ExitCode run();

  const StateComponents& components() const { return components_; }
  bool on_gpu() const { return job_.runtime.device.is_cuda(); }

 private:
  const config::JobConfig& config() const { return plan_.config; }
  int batch_ranks() const { return job_.runtime.mesh->degree(parallel::MeshDim::kBatch); }
  checkpointing::ResumePlan plan() const;
  void make_model();
  void log_model() const;
  void make_state();
  void load_checkpoint();
  void start_metrics(const std::vector<std::string>& command);
  ExitCode train();
  void finish_saves();
  bool is_finished() const;
  ExitCode complete();
  std::optional<StepInput> fetch(int64_t step);
  void log_batch_change(int64_t step);
  void train_step(int64_t step, const StepInput& input);
  void store_skips(int64_t step);
  void read_checks(bool wait);
  void audit_replicas(int64_t step) const;
  void log_step(int64_t step, const StepInput& input, const StepLosses& losses, const at::Tensor& norm,
                const models::LayerMetrics& reported);
  void validate(int64_t step);
  ExitCode stopped(int64_t step, StopSignal signal, bool trained);

  Job job_;                         // follows the plan
  checkpointing::ResumePlan plan_;  // the configuration and the learning-rate curve that this run follows
  ModelAndOptimizer model_;
  checkpointing::TrainState state_;
  std::optional<config::BatchSchedule> batches_;
  int64_t resumed_step_ = 0;  // until the first logged step of a resumed run
  std::optional<std::filesystem::path> gradient_dump_;
  std::optional<TrainingStep> training_step_;
  std::optional<Validator> validator_;  // none: off
  StepAgreement agreement_;
  StateComponents components_;
  checkpointing::DeviceMover memory_mover_;
  std::unique_ptr<metrics::MetricsLogger> metrics_;
  std::optional<CollapseWatch> collapse_watch_;  // of a model with experts
  std::optional<RankMonitor> rank_monitor_;      // none in a dry run, whose other ranks do not exist
  std::unique_ptr<metrics::Profiler> profiler_;
  std::optional<checkpointing::Checkpointer>
      checkpointer_;  // the last: a save in the background reads what is above
};

}  // namespace hyperion::trainer
