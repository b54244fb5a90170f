#include "trainer/build/pipeline_setup.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "models/description.h"
#include "parallel/pipeline/csv.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/simulation.h"
#include "trainer/config/input_path.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

using parallel::PipelineKind, parallel::PipelineOp;

// Every stage's forwards of all microbatches, one stage of a rank after the other.
parallel::PipelineSchedule forwards(const std::vector<int>& rank_of_stage, int ranks, int microbatches) {
  parallel::PipelineSchedule schedule{microbatches, rank_of_stage, {}};
  schedule.ranks.resize(static_cast<size_t>(ranks));
  for (int stage = 0; stage < schedule.stages(); ++stage)
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      schedule.ranks[static_cast<size_t>(rank_of_stage[static_cast<size_t>(stage)])].push_back(
          {PipelineOp::kForward, stage, microbatch});
  return schedule;
}

constexpr size_t kLargestSchedule = size_t{16} << 20;  // docs/limits.md

// The order in the user's file; nothing without one.
std::optional<parallel::PipelineSchedule> listed_schedule(const config::JobConfig& config,
                                                          size_t microbatches) {
  const auto& options = config.parallelism;
  if (options.pipeline_parallel_schedule_csv.empty()) return std::nullopt;
  const std::string path =
      config::resolve_input(options.pipeline_parallel_schedule_csv, config::install_root()).string();
  if (!config::matches_a_file(path))
    throw_config(
        "parallelism.pipeline_parallel_schedule_csv = \"{}\": there is no such file; leave the key out to "
        "take the order of parallelism.pipeline_parallel_schedule",
        path);
  return parallel::parse_csv_schedule(read_file(path, kLargestSchedule), path,
                                      static_cast<int>(options.pipeline_parallel_degree),
                                      static_cast<int>(microbatches));
}

// The stages whose modules the user lists.
std::vector<UnitRange> stages_of_parts(const config::JobConfig& config, const models::ModelArgs& model,
                                       PipelineKind kind,
                                       const std::optional<parallel::PipelineSchedule>& listed) {
  const auto& options = config.parallelism;
  const int64_t ranks = options.pipeline_parallel_degree;
  std::vector<UnitRange> stages =
      parallel::units_of_model_parts(models::unit_names(model), *options.module_fqns_per_model_part);
  const auto parts = static_cast<int64_t>(stages.size());
  const parallel::StagesPerRank allowed = parallel::stages_per_rank(kind);
  if (listed && parts != listed->stages())
    throw_config("{} has {} stages, and parallelism.module_fqns_per_model_part {}",
                 options.pipeline_parallel_schedule_csv, listed->stages(), parts);
  if (!listed && (parts % ranks != 0 || !allowed.allows(static_cast<int>(parts / ranks))))
    throw_config(
        "parallelism.module_fqns_per_model_part has {}, and {} on {} ranks needs {}: list so many, or choose "
        "another schedule or pipeline_parallel_degree",
        counted(parts, "part"), text_of(kind), ranks,
        allowed.min == allowed.max
            ? std::to_string(ranks * allowed.min)
            : fmt::format("a multiple of {}, at least {}", ranks, ranks * allowed.min));
  return stages;
}

// Returns the stages by the user's file, else by the schedule and the number of blocks.
std::vector<UnitRange> stages_by_number(const config::JobConfig& config, const models::ModelArgs& model,
                                        PipelineKind kind,
                                        const std::optional<parallel::PipelineSchedule>& listed) {
  const auto& options = config.parallelism;
  const int blocks = static_cast<int>(model.n_layers);
  const parallel::SplitOptions split{
      .first_stage_less_layers = options.pipeline_parallel_first_stage_less_layers,
      .last_stage_less_layers = options.pipeline_parallel_last_stage_less_layers,
      .layers_per_stage = options.pipeline_parallel_layers_per_stage};
  const int stages = listed ? listed->stages()
                            : parallel::number_of_stages(
                                  kind, static_cast<int>(options.pipeline_parallel_degree), blocks, split);
  return parallel::split_units(stages, blocks, split);
}

bool recomputes_all_blocks(const config::JobConfig& config) {
  return config.activation_checkpoint.mode == config::RecomputeMode::kFull;
}

bool names_pairs(const parallel::PipelineSchedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& actions) {
    return std::ranges::any_of(actions, &parallel::PipelineAction::overlaps_next);
  });
}

// Unit 0 is the embedding, and the last one the head.
ModelStage share_of_stage(const UnitRange& units, const models::ModelArgs& model) {
  const auto head = static_cast<size_t>(model.n_layers) + 1;
  return {.first_block = static_cast<int64_t>(std::max<size_t>(units.first, 1)) - 1,
          .end_block = static_cast<int64_t>(std::min(units.end, head)) - 1,
          .embedding = units.first == 0,
          .head = units.end > head};
}

// Returns the actions of all ranks as text, equal for equal schedules.
std::string text_of_lists(const parallel::PipelineSchedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.ranks)
    text += fmt::format("{}\n", fmt::join(parallel::to_entries(actions), ","));
  return text;
}

}  // namespace

Pipeline make_pipeline(const PipelineSettings& settings) {
  const int stages_per_rank = static_cast<int>(settings.stages.size()) / settings.ranks;
  const auto shape = [=](size_t microbatches, size_t batches) {
    return parallel::PipelineShape{.ranks = settings.ranks,
                                   .stages_per_rank = stages_per_rank,
                                   .microbatches = static_cast<int>(microbatches),
                                   .batches = static_cast<int>(batches)};
  };
  const auto training_order = [=](size_t batches) {
    return settings.listed ? parallel::repeat(*settings.listed, static_cast<int>(batches))
                           : parallel::make_schedule(settings.kind, shape(settings.microbatches, batches));
  };
  const std::vector<int> rank_of_stage =
      settings.listed ? settings.listed->rank_of_stage
                      : parallel::ranks_of_stages(settings.kind, settings.ranks, stages_per_rank);
  return {.stages = settings.stages,
          .rank_of_stage = rank_of_stage,
          .listed = settings.listed ? text_of_lists(*settings.listed) : "",
          .names_pairs =
              settings.listed ? names_pairs(*settings.listed) : settings.kind == PipelineKind::kDualPipeV,
          .gathers_stages = settings.gathers_stages,
          .reduces_once = settings.reduces_once,
          .make = [=](bool training, size_t microbatches) {
            parallel::PipelineSchedule schedule =
                training ? training_order(microbatches / settings.microbatches)
                         : forwards(rank_of_stage, settings.ranks, static_cast<int>(microbatches));
            return parallel::lower(schedule, parallel::planned_costs(settings.recomputes));
          }};
}

int rank_of_unit(const Pipeline& pipeline, size_t unit) {
  const auto after = [&](const UnitRange& stage) { return unit < stage.end; };
  return pipeline.rank_of_stage[std::ranges::find_if(pipeline.stages, after) - pipeline.stages.begin()];
}

std::vector<UnitRange> units_of_rank(const Pipeline& pipeline, int rank) {
  std::vector<UnitRange> units;
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage)
    if (pipeline.rank_of_stage[stage] == rank) units.push_back(pipeline.stages[stage]);
  return units;
}

std::optional<std::pair<int, int>> ranks_of_tied_table(const std::optional<Pipeline>& pipeline,
                                                       const models::ModelArgs& model) {
  if (!pipeline || !model.tied) return std::nullopt;
  const std::pair ranks(pipeline->rank_of_stage.front(), pipeline->rank_of_stage.back());
  return ranks.first != ranks.second ? std::optional(ranks) : std::nullopt;
}

std::optional<Pipeline> configured_pipeline(const config::JobConfig& config, const models::ModelArgs& model) {
  const auto& options = config.parallelism;
  if (options.pipeline_parallel_degree == 1) return std::nullopt;
  const PipelineKind kind = parallel::pipeline_kind(options.pipeline_parallel_schedule);
  const int64_t rows = options.pipeline_parallel_microbatch_size;
  const auto require_multiple = [&](const char* key, int64_t batch) {
    if (batch % rows != 0)
      throw_config(
          "{} = {} is no multiple of parallelism.pipeline_parallel_microbatch_size = {}: change one of them",
          key, batch, rows);
  };
  require_multiple("training.local_batch_size", config.training.local_batch_size);
  if (config.validation.enable)
    require_multiple("validation.local_batch_size", config.validation.local_batch_size);
  const auto microbatches = static_cast<size_t>(config.training.local_batch_size / rows);
  std::optional<parallel::PipelineSchedule> listed = listed_schedule(config, microbatches);
  if (!listed && (kind == PipelineKind::kSingle || kind == PipelineKind::kMulti))
    throw_config(
        "parallelism.pipeline_parallel_schedule = \"{}\" takes its order from a file: set "
        "parallelism.pipeline_parallel_schedule_csv",
        text_of(kind));
  std::vector<UnitRange> stages = options.module_fqns_per_model_part
                                      ? stages_of_parts(config, model, kind, listed)
                                      : stages_by_number(config, model, kind, listed);
  return make_pipeline(
      {.kind = kind,
       .listed = std::move(listed),
       .ranks = static_cast<int>(options.pipeline_parallel_degree),
       .stages = std::move(stages),
       .microbatches = microbatches,
       .recomputes = recomputes_all_blocks(config),
       .gathers_stages = options.fsdp_reshard_after_forward != config::ReshardAfterForward::kAlways,
       .reduces_once = config::reduces_gradients_once(config)});
}

namespace {

// "layers.0 to layers.3"
std::string text_of_units(const UnitRange& units, const std::vector<std::string>& names) {
  const std::string &first = names[units.first], &last = names[units.end - 1];
  return first == last ? first : first + " to " + last;
}

// Fills in the stages of each rank.
void plan_stages(PipelinePlan& plan, const models::ModelArgs& model) {
  const std::vector<std::string> names = models::unit_names(model);
  const models::ModelDescription description = models::describe_model(model);
  for (size_t stage = 0; stage < plan.pipeline.stages.size(); ++stage) {
    const UnitRange& units = plan.pipeline.stages[stage];
    const auto rank = static_cast<size_t>(plan.pipeline.rank_of_stage[stage]);
    const ModelStage& share = plan.shares[rank].emplace_back(share_of_stage(units, model));
    PipelinePlan::Rank& described = plan.ranks[rank];
    described.stages += fmt::format("{}stage {} ({})", described.stages.empty() ? "" : ", ", stage,
                                    text_of_units(units, names));
    described.parameters += parameters_of(description, share);
  }
}

// For the log.
std::string text_of_plan(const PipelinePlan& plan, const config::JobConfig& config,
                         const models::ModelArgs& model, const std::string& microbatches) {
  const auto& options = config.parallelism;
  const std::vector<std::string> names = models::unit_names(model);
  std::vector<std::string> stages;
  for (size_t stage = 0; stage < plan.pipeline.stages.size(); ++stage)
    stages.push_back(fmt::format("{} on pp rank {}", text_of_units(plan.pipeline.stages[stage], names),
                                 plan.pipeline.rank_of_stage[stage]));
  const std::string number = counted(static_cast<int64_t>(stages.size()), "stage");
  constexpr size_t kShownStages = 6;  // `hyperion check` has a row for each rank
  if (stages.size() > kShownStages) {
    stages.erase(stages.begin() + kShownStages / 2, stages.end() - kShownStages / 2);
    stages.insert(stages.begin() + kShownStages / 2, "...");
  }
  const int kept = std::ranges::max(plan.ranks, {}, &PipelinePlan::Rank::max_in_flight).max_in_flight;
  return fmt::format(
      "{} ({}); {}, {} per step: planned bubble {:.1f} %, a rank keeps activations of at most {}, each stage "
      "counted; {}{}",
      number, fmt::join(stages, "; "),
      options.pipeline_parallel_schedule_csv.empty() ? options.pipeline_parallel_schedule
                                                     : options.pipeline_parallel_schedule_csv,
      microbatches, 100 * plan.bubble, counted(kept, "microbatch", "microbatches"),
      plan.pipeline.gathers_stages ? "weights are gathered for several microbatches, gradients reduced once"
                                   : "each microbatch gathers weights and reduces gradients",
      plan.pipeline.names_pairs ? "; the forward and the backward of a pair run one after the other" : "");
}

}  // namespace

std::optional<PipelinePlan> plan_pipeline(const config::JobConfig& config, const models::ModelArgs& model,
                                          int64_t batches) {
  const std::optional<Pipeline> pipeline = configured_pipeline(config, model);
  if (!pipeline) return std::nullopt;
  const int64_t microbatches =
      batches * config.training.local_batch_size / config.parallelism.pipeline_parallel_microbatch_size;
  PipelinePlan plan{.pipeline = *pipeline,
                    .lists = pipeline->make(/*training=*/true, static_cast<size_t>(microbatches)),
                    .tied_ranks = ranks_of_tied_table(pipeline, model)};
  plan.ranks.resize(plan.lists.ranks.size());
  plan.shares.resize(plan.lists.ranks.size());
  plan_stages(plan, model);
  const std::vector<int> in_flight = parallel::max_microbatches_in_flight(plan.lists);
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) plan.ranks[rank].max_in_flight = in_flight[rank];
  plan.bubble = parallel::simulate(plan.lists, parallel::planned_costs(recomputes_all_blocks(config))).bubble;
  const std::string counted_microbatches = counted(microbatches, "microbatch", "microbatches");
  plan.text = text_of_plan(plan, config, model, counted_microbatches);
  const int64_t ranks = config.parallelism.pipeline_parallel_degree;
  if (microbatches < ranks)
    plan.warnings.push_back(fmt::format(
        "parallelism.pipeline_parallel_degree = {}: a step has {}, fewer than ranks: the planned bubble is "
        "{:.0f} % of the time; raise training.local_batch_size or training.global_batch_size, or choose "
        "fewer ranks",
        ranks, counted_microbatches, 100 * plan.bubble));
  return plan;
}

}  // namespace hyperion::trainer
