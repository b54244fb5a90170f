// Predicts memory and speed of a job on a mesh, without a GPU, a tokenizer or data. Pure, but for a file of
// [parallelism] that the configuration names.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "trainer/build/peak_memory.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/config/load.h"
#include "trainer/plan/card.h"
#include "trainer/plan/step_time.h"

namespace hyperion::app {

// The job's ranks and what they run on.
struct Hardware {
  int64_t gpus = 8;
  trainer::CardRange card;
  trainer::Cluster cluster;
};

// A configuration with all degrees set, and what is predicted for it.
struct MeshPlan {
  config::JobConfig config;
  double global_batch = 0;                     // sequences of a step
  double microbatches = 0;                     // of a step and rank
  trainer::PeakMemory memory{};                // of the fullest rank
  double least_memory = 0;                     // of the ranks that were looked at
  int64_t slowest_stage = 0;                   // the pipeline rank that the times are of
  trainer::StepTime slow{}, middle{}, fast{};  // at the ends of the card's constants
  trainer::StepWork work{};                    // which takes these times
  double kernels = 0;                          // that the host of this rank launches in a step

  double tokens() const { return global_batch * static_cast<double>(config.training.seq_len); }
  // Tokens per second of all GPUs.
  double speed(const trainer::StepTime& time) const { return tokens() / time.total(); }
};

// Makes plans of one model; what several meshes have in common is computed once.
class Planner {
 public:
  // refuses: whether plan() throws Error(kUsage) instead of returning nullopt.
  Planner(const models::ModelArgs& model, const Hardware& hardware, bool refuses = false);

  // Returns nullopt if the pipeline's schedule does not serve the configuration, and if a step takes more
  // than `time_limit` seconds. The mesh must fit (config::check_config()). Memory is predicted until it
  // exceeds `memory_limit` bytes; a plan whose lower bound exceeds it has no times. The work and the times of
  // the card's ends only with `ends`.
  std::optional<MeshPlan> plan(const config::JobConfig& config, double memory_limit, bool ends,
                               double time_limit = std::numeric_limits<double>::infinity());

 private:
  struct PipelineLists {
    trainer::PipelinePlan plan;
    parallel::PipelineSchedule lists;
    std::map<double, trainer::PipelineSeconds> seconds{};  // by the transfer
  };
  using Key = std::tuple<int64_t, std::string, int64_t, int64_t, bool, bool>;

  PipelineLists* pipeline_of(const config::JobConfig& config, int64_t batches);
  trainer::PipelineTimes times_of(PipelineLists& lists, bool recomputes);

  const models::ModelArgs& model_;
  const models::ModelDescription description_;
  const Hardware& hardware_;
  bool refuses_;

  std::map<Key, std::unique_ptr<PipelineLists>> pipelines_;
};

}  // namespace hyperion::app
