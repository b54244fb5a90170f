#include "app/plan/mesh_plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/pipeline/simulation.h"
#include "trainer/config/validate.h"
#include "trainer/plan/job_size.h"
#include "trainer/plan/step_shape.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::app {
namespace {

using parallel::MeshDim, parallel::PipelineOp;
using trainer::PipelineSeconds, trainer::RankStages, trainer::StepTime;

// The units in which a rank's list computes: forward 1, dgrad 1, wgrad 1, and a recomputed forward.
double backward_units(bool recomputes) {
  return recomputes ? 3 : 2;
}

double units_of(PipelineOp op, bool recomputes) {
  switch (op) {
    case PipelineOp::kForward:
    case PipelineOp::kWeightGradient:
      return 1;
    case PipelineOp::kBackward:
      return backward_units(recomputes);
    case PipelineOp::kInputGradient:
      return backward_units(recomputes) - 1;
    default:
      return 0;
  }
}

parallel::PipelineCosts costs(double transfer, bool recomputes) {
  const double input_gradient = recomputes ? 2 : 1;
  return parallel::uniform_costs(1, backward_units(recomputes), input_gradient, 1, transfer);
}

RankStages stages_of_rank(const trainer::PipelinePlan& plan, size_t rank) {
  RankStages stages{.stages = plan.shares[rank], .reduces_once = plan.pipeline.reduces_once};
  if (!plan.pipeline.gathers_stages) return stages;
  for (size_t stage = 0; stage < plan.pipeline.stages.size(); ++stage)
    if (plan.pipeline.rank_of_stage[stage] == static_cast<int>(rank))
      stages.gathers.push_back(static_cast<double>(
          std::ranges::count_if(plan.lists.ranks[rank], [&](const parallel::PipelineAction& action) {
            return action.op == PipelineOp::kUnshard && action.stage == static_cast<int>(stage);
          })));
  return stages;
}

// The ranks of a node if those that share experts fill several, else 0.
int node_of_experts(const config::JobConfig& config, const Hardware& hardware) {
  const int64_t node = std::min<int64_t>(hardware.cluster.gpus_per_node, hardware.gpus),
                ranks = config.parallelism.expert_parallel_degree *
                        config.parallelism.expert_tensor_parallel_degree;
  return ranks > node && ranks % node == 0 ? static_cast<int>(node) : 0;
}

}  // namespace

Planner::Planner(const models::ModelArgs& model, const Hardware& hardware, bool refuses)
    : model_(model), description_(models::describe_model(model)), hardware_(hardware), refuses_(refuses) {}

parallel::Mesh Planner::mesh_of(const config::JobConfig& config) const {
  return parallel::Mesh(trainer::mesh_config(config, node_of_experts(config, hardware_)),
                        static_cast<int>(hardware_.gpus));
}

Planner::Pipeline* Planner::pipeline_of(const config::JobConfig& config, const parallel::Mesh& mesh) {
  const auto& options = config.parallelism;
  const int64_t batches = config::microbatches_of(config.training, mesh.degree(MeshDim::kBatch));
  const bool recomputes = config.activation_checkpoint.mode == config::RecomputeMode::kFull;
  const Key key{options.pipeline_parallel_degree,
                options.pipeline_parallel_schedule,
                batches * config.training.local_batch_size / options.pipeline_parallel_microbatch_size,
                batches,
                recomputes,
                options.fsdp_reshard_after_forward == config::ReshardAfterForward::kAlways};
  const auto [found, is_new] = pipelines_.try_emplace(key);
  if (!is_new) return found->second.get();
  try {
    found->second = std::make_unique<Pipeline>(trainer::plan_pipeline(config, model_, batches).value());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage || refuses_) throw;
  }
  return found->second.get();
}

trainer::PipelineTimes Planner::times_of(Pipeline& pipeline, bool recomputes) {
  const auto seconds_at = [&pipeline, recomputes](double transfer) {
    const auto found = pipeline.seconds.find(transfer);
    if (found != pipeline.seconds.end()) return found->second;
    const auto seconds = [&](double cost) {
      return parallel::simulate(pipeline.plan.lists, costs(cost, recomputes),
                                parallel::TransferStreams::kPerDirection)
          .seconds;
    };
    double units = 0;
    for (const parallel::PipelineAction& action : pipeline.plan.lists.ranks.front())
      units += units_of(action.op, recomputes);
    const double with = seconds(transfer),
                 without = transfer == 0 ? with : pipeline.seconds.at(0).bubble + units;
    return pipeline.seconds[transfer] = {
               .bubble = without - units, .transfers = with - without, .units = units};
  };
  // A simulation takes long: between a few transfers the seconds are interpolated.
  return [seconds_at](double transfer) {
    PipelineSeconds seconds = seconds_at(0);
    if (transfer <= 0) return seconds;
    constexpr double kStep = 2;
    const double below = std::pow(kStep, std::floor(std::log2(transfer)));
    const double low = seconds_at(below).transfers, high = seconds_at(below * kStep).transfers;
    seconds.transfers = low + (high - low) * (transfer - below) / (below * kStep - below);
    return seconds;
  };
}

std::optional<MeshPlan> Planner::plan(const config::JobConfig& config, bool ends) {
  std::optional<MeshPlan> plan = times(config, ends);
  if (plan) plan->memory = memory(config).value();
  return plan;
}

std::optional<MeshPlan> Planner::times(const config::JobConfig& config, bool ends) {
  const parallel::Mesh mesh = mesh_of(config);
  MeshPlan plan{.config = config,
                .global_batch = static_cast<double>(
                    config::global_batch_of(config.training, mesh.degree(MeshDim::kBatch))),
                .microbatches = trainer::StepShape(config, mesh).microbatches};
  const bool recomputes = config.activation_checkpoint.mode == config::RecomputeMode::kFull;
  // Keeps the times of a rank if they are the longest yet.
  const auto add_rank = [&](size_t rank, const RankStages& stages, const trainer::PipelineTimes& times) {
    trainer::StepWork work = trainer::step_work(config, model_, description_, mesh, stages);
    const auto time_on = [&](const trainer::Card& card) {
      return trainer::step_time(work, {mesh, hardware_.cluster, card}, times);
    };
    const StepTime middle = time_on(hardware_.card.middle);
    if (middle.total() <= plan.middle.total()) return;
    plan.middle = middle;
    plan.slowest_stage = static_cast<int64_t>(rank);
    plan.kernels = work.launches();
    if (!ends) return;
    plan.slow = time_on(hardware_.card.slow);
    plan.fast = time_on(hardware_.card.fast);
    plan.work = std::move(work);
  };
  if (config.parallelism.pipeline_parallel_degree == 1) {
    add_rank(0,
             {.stages = {trainer::all_units(description_)},
              .reduces_once = config::reduces_gradients_once(config)},
             {});
    return plan;
  }
  Pipeline* const pipeline = pipeline_of(config, mesh);
  if (pipeline == nullptr) return std::nullopt;
  const trainer::PipelineTimes times = times_of(*pipeline, recomputes);
  for (const size_t rank : pipeline->different_ranks())
    add_rank(rank, stages_of_rank(pipeline->plan, rank), times);
  return plan;
}

std::optional<trainer::PeakMemory> Planner::memory(const config::JobConfig& config, double limit) {
  const parallel::Mesh mesh = mesh_of(config);
  const Pipeline* const pipeline =
      config.parallelism.pipeline_parallel_degree > 1 ? pipeline_of(config, mesh) : nullptr;
  const trainer::ReplayedJob job{config, model_, description_, mesh, pipeline ? &pipeline->plan : nullptr};
  trainer::PeakMemory most;
  for (const size_t rank : pipeline ? pipeline->different_ranks() : std::vector<size_t>{0}) {
    const std::optional<trainer::JobSize> size = trainer::replayed_size(job, rank, /*on_gpu=*/true, limit);
    if (!size) return std::nullopt;
    if (size->peak.total() > most.total()) most = size->peak;
  }
  return most;
}

}  // namespace hyperion::app
