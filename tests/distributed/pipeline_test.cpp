// Pipeline parallelism, alone and with FSDP, HSDP and tensor parallelism, on a CPU: the bits of one rank that
// runs the same microbatches one after the other.
#include <map>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kTrainedSteps = 10;

struct TrainedJob {
  std::vector<TinyStep> steps;
  std::map<std::pair<int64_t, int64_t>, float> gradients;  // of the first step: parameter, element -> value
};

TrainedJob train_job(int ranks, const TinyJob& job) {
  const auto steps = run_ranks(
      ranks, [=](const Environment& environment) { return train_tiny(job, environment, kTrainedSteps); });
  const auto gradients = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).first_gradients();
  });
  TrainedJob run{steps.front(), {}};
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    if (steps[rank] != run.steps) throw std::runtime_error("the ranks have different losses or norms");
    for (const auto& [parameter, element, value] : gradients[rank]) {
      const auto [known, added] = run.gradients.try_emplace({parameter, element}, value);
      if (!added && known->second != value)
        throw std::runtime_error("two ranks have different numbers for one element");
    }
  }
  return run;
}

bool same_losses(const TrainedJob& a, const TrainedJob& b) {
  for (size_t i = 0; i < a.steps.size(); ++i)
    if (a.steps[i].loss != b.steps[i].loss) return false;
  return true;
}

}  // namespace

TEST_CASE("a pipeline has the losses and gradients of one rank bit for bit") {
  struct Layout {
    MeshConfig mesh;
    PipelineKind schedule;
    size_t stages_per_rank;
    bool shared_memory = true;
  };
  using enum PipelineKind;
  for (const auto& [mesh, schedule, stages_per_rank, shared_memory] :
       {Layout{{.pp = 2}, k1F1B, 1}, Layout{{.pp = 3}, kGPipe, 1}, Layout{{.pp = 2}, kInterleaved1F1B, 2},
        Layout{{.pp = 2}, kInterleaved1F1B, 2, false}, Layout{{.pp = 2, .dp_shard = 2}, k1F1B, 1},
        Layout{{.pp = 2, .dp_shard = 1, .tp = 2}, k1F1B, 1},
        Layout{{.pp = 2, .dp_replicate = 2, .dp_shard = 1}, kInterleaved1F1B, 2}}) {
    TinyJob job{.model = "llama3", .accumulation = 6, .heads = 4, .kv_heads = 2};
    job.shared_memory = shared_memory;
    job.mesh = mesh;
    job.mesh.pp = 1;
    const int of_stage = mesh.dp_replicate * std::max(mesh.dp_shard, 1) * mesh.tp;
    const TrainedJob one = train_job(of_stage, job);
    job.mesh = mesh;
    job.schedule = schedule;
    job.stages_per_rank = stages_per_rank;
    CAPTURE(mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.tp, text_of(schedule));
    const TrainedJob pipeline = train_job(mesh.pp * of_stage, job);
    CHECK(same_losses(pipeline, one));
    CHECK(pipeline.gradients == one.gradients);
    CHECK(largest_difference(pipeline.steps, one.steps) < 1e-12);  // of norms too
  }
}

}  // namespace hyperion::parallel
