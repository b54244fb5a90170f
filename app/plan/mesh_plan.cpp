#include "app/plan/mesh_plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "parallel/pipeline/simulation.h"
#include "trainer/config/validate.h"
#include "trainer/plan/memory_needs.h"
#include "trainer/plan/size_estimate.h"
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

RankStages stages_of_rank(const trainer::PipelinePlan& plan, const parallel::PipelineSchedule& lists,
                          size_t rank) {
  RankStages stages{.stages = plan.shares[rank].stages, .reduces_once = plan.pipeline.reduces_once};
  if (!plan.pipeline.gathers_stages) return stages;
  for (size_t stage = 0; stage < plan.pipeline.stages.size(); ++stage)
    if (plan.pipeline.rank_of_stage[stage] == static_cast<int>(rank))
      stages.gathers.push_back(static_cast<double>(
          std::ranges::count_if(lists.ranks[rank], [&](const parallel::PipelineAction& action) {
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

// The actions of a step without a pipeline. From the second microbatch on each is as the one before.
trainer::Schedule schedule_of(const config::JobConfig& config, const models::ModelDescription& model,
                              int64_t microbatches) {
  return trainer::training_schedule(
      static_cast<size_t>(model.blocks()) + 2, static_cast<size_t>(std::min<int64_t>(2, microbatches)),
      config.parallelism.fsdp_reshard_after_forward != config::ReshardAfterForward::kNever,
      config::reduces_gradients_once(config));
}

}  // namespace

Planner::Planner(const models::ModelArgs& model, const Hardware& hardware, bool refuses)
    : model_(model), description_(models::describe_model(model)), hardware_(hardware), refuses_(refuses) {}

Planner::PipelineLists* Planner::pipeline_of(const config::JobConfig& config, int64_t batches) {
  const auto& options = config.parallelism;
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
    std::optional<trainer::PipelinePlan> plan = trainer::plan_pipeline(config, model_, batches);
    parallel::PipelineSchedule lists =
        plan->pipeline.make(/*training=*/true, static_cast<size_t>(std::get<2>(key)));
    found->second = std::make_unique<PipelineLists>(std::move(*plan), std::move(lists));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage || refuses_) throw;
  }
  return found->second.get();
}

trainer::PipelineTimes Planner::times_of(PipelineLists& lists, bool recomputes) {
  const auto seconds_at = [&lists, recomputes](double transfer) {
    const auto found = lists.seconds.find(transfer);
    if (found != lists.seconds.end()) return found->second;
    const auto seconds = [&](double cost) {
      return parallel::simulate(lists.lists, costs(cost, recomputes),
                                parallel::TransferStreams::kPerDirection)
          .seconds;
    };
    double units = 0;
    for (const parallel::PipelineAction& action : lists.lists.ranks.front())
      units += units_of(action.op, recomputes);
    const double with = seconds(transfer),
                 without = transfer == 0 ? with : lists.seconds.at(0).bubble + units;
    return lists.seconds[transfer] = {.bubble = without - units, .transfers = with - without, .units = units};
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

std::optional<MeshPlan> Planner::plan(const config::JobConfig& config, double memory_limit, bool ends,
                                      double time_limit) {
  const parallel::Mesh mesh(trainer::mesh_config(config, node_of_experts(config, hardware_)),
                            static_cast<int>(hardware_.gpus));
  const int64_t ranks = mesh.degree(MeshDim::kBatch),
                batches = config::microbatches_of(config.training, ranks),
                shards = mesh.degree(MeshDim::kFsdp);
  const int64_t microbatches = batches * config.training.local_batch_size /
                               config::microbatch_rows(config, config.training.local_batch_size);
  MeshPlan plan{.config = config,
                .global_batch = static_cast<double>(config::global_batch_of(config.training, ranks)),
                .microbatches = static_cast<double>(microbatches)};
  PipelineLists* pipeline = nullptr;
  if (config.parallelism.pipeline_parallel_degree > 1) {
    pipeline = pipeline_of(config, batches);
    if (pipeline == nullptr) return std::nullopt;
  }
  // The first and the last pipeline rank differ from the others by the embedding and the head.
  std::vector<size_t> played{0};
  if (pipeline != nullptr) {
    played.push_back(pipeline->plan.shares.size() / 2);
    played.push_back(pipeline->plan.shares.size() - 1);
  }
  std::vector<trainer::JobSize> sizes;  // by `played`
  for (const size_t rank : played) {
    const trainer::PipelineShare* share = pipeline ? &pipeline->plan.shares[rank] : nullptr;
    sizes.push_back(trainer::job_size(config, description_, shards, batches, share));
    plan.least_memory =
        std::max(plan.least_memory,
                 trainer::total(trainer::memory_needs(config, sizes.back(), /*on_gpu=*/true).device));
  }
  plan.memory.states = plan.least_memory;
  if (plan.least_memory > memory_limit) return plan;
  const bool recomputes = config.activation_checkpoint.mode == config::RecomputeMode::kFull;
  for (const size_t rank : played) {
    const RankStages stages = pipeline ? stages_of_rank(pipeline->plan, pipeline->lists, rank)
                                       : RankStages{.stages = {{.first_block = 0,
                                                                .end_block = description_.blocks(),
                                                                .embedding = true,
                                                                .head = true}},
                                                    .reduces_once = config::reduces_gradients_once(config)};
    trainer::StepWork work = trainer::step_work(config, model_, description_, mesh, batches, stages);
    const trainer::PipelineTimes times =
        pipeline ? times_of(*pipeline, recomputes) : trainer::PipelineTimes();
    const auto time_on = [&](const trainer::Card& card) {
      return trainer::step_time(work, card, mesh, hardware_.cluster, times);
    };
    const StepTime middle = time_on(hardware_.card.middle);
    if (middle.total() <= plan.middle.total()) continue;
    plan.middle = middle;
    plan.slowest_stage = static_cast<int64_t>(rank);
    plan.kernels = work.launches();
    if (!ends) continue;
    plan.slow = time_on(hardware_.card.slow);
    plan.fast = time_on(hardware_.card.fast);
    plan.work = std::move(work);
  }
  if (plan.middle.total() > time_limit) return std::nullopt;
  plan.memory = {};
  for (size_t i = 0; i < played.size(); ++i) {
    const trainer::Schedule schedule =
        pipeline ? trainer::pipeline_schedule(pipeline->plan.pipeline, static_cast<int>(played[i]),
                                              pipeline->lists)
                 : schedule_of(config, description_, microbatches);
    const trainer::PeakMemory memory =
        trainer::peak_memory(config, model_, description_, mesh, sizes[i], schedule, memory_limit);
    if (memory.total() > plan.memory.total()) plan.memory = memory;
    if (memory.total() > memory_limit) break;
  }
  return plan;
}

}  // namespace hyperion::app
