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
#include <vector>

#include "trainer/build/peak_memory.h"
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

  // Returns nullopt if the pipeline's schedule does not serve the configuration. The mesh must fit
  // (config::check_config()). The work and the times of the card's ends only with `ends`.
  std::optional<MeshPlan> plan(const config::JobConfig& config, bool ends);

  // The two parts of plan(): times alone, and the memory of the fullest rank, nullopt if that is more than
  // `limit` bytes.
  std::optional<MeshPlan> times(const config::JobConfig& config, bool ends);
  std::optional<trainer::PeakMemory> memory(const config::JobConfig& config,
                                            double limit = std::numeric_limits<double>::infinity());

 private:
  struct Pipeline {
    trainer::PipelinePlan plan;
    std::map<double, trainer::PipelineSeconds> seconds{};  // by the transfer

    // The first and the last rank differ from the others by the embedding and the head.
    std::vector<size_t> different_ranks() const {
      return {0, plan.shares.size() / 2, plan.shares.size() - 1};
    }
  };
  using Key = std::tuple<int64_t, std::string, int64_t, int64_t, bool, bool>;

  parallel::Mesh mesh_of(const config::JobConfig& config) const;
  Pipeline* pipeline_of(const config::JobConfig& config, const parallel::Mesh& mesh);  // null: none serves
  trainer::PipelineTimes times_of(Pipeline& pipeline, bool recomputes);

  const models::ModelArgs& model_;
  const models::ModelDescription description_;
  const Hardware& hardware_;
  bool refuses_;

  std::map<Key, std::unique_ptr<Pipeline>> pipelines_;
};

}  // namespace hyperion::app
