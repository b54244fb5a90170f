// The order of a step, as a list: without tensors and ranks.
#include "trainer/engine/schedule.h"

#include <map>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "models/description.h"
#include "models/flavors/registry.h"
#include "parallel/pipeline/csv.h"
#include "tests/support/error_of.h"
#include "trainer/build/pipeline_setup.h"

namespace hyperion::trainer {
namespace {

// "F0.1+2": the forward of microbatch 0 through unit 1, while unit 2 is gathered.
std::string text(const Schedule& schedule) {
  std::string all;
  for (const auto& [kind, microbatch, unit, prefetch, stage, last] : schedule) {
    constexpr std::string_view kLetters = "FLBIWgfarwES>{<}";  // {, }: receives
    all += fmt::format("{}{}", all.empty() ? "" : " ", kLetters.at(static_cast<size_t>(kind)));
    if (kind == ActionKind::kFinishReduction || kind == ActionKind::kSumReplicated) continue;
    all += fmt::format("{}", microbatch);
    if (kind != ActionKind::kRetireMicrobatch) all += fmt::format(".{}", unit);
    if (prefetch) all += fmt::format("+{}", *prefetch);
  }
  return all;
}

}  // namespace

TEST_CASE("one microbatch goes through the units and back, with two units gathered at once") {
  CHECK(text(training_schedule(4, 1, {.reshard_after_forward = true, .reduce_once = false})) ==
        "F0.0+1 f0.0 F0.1+2 f0.1 F0.2+3 f0.2 "
        "L0.3+2 f0.3 r0.3 B0.2+1 f0.2 r0.2 B0.1 f0.1 r0.1 B0.0 f0.0 r0.0 E0 w S");
}

TEST_CASE("without resharding after forward a weight is freed after its backward alone") {
  CHECK(text(training_schedule(3, 1, {.reshard_after_forward = false, .reduce_once = false})) ==
        "F0.0+1 F0.1+2 L0.2+1 f0.2 r0.2 B0.1 f0.1 r0.1 B0.0 f0.0 r0.0 E0 w S");
}

TEST_CASE("a microbatch's last reduction is waited for behind the next one's first block, and at the end") {
  CHECK(text(training_schedule(3, 2, {.reshard_after_forward = true, .reduce_once = false})) ==
        "F0.0+1 f0.0 F0.1+2 f0.1 L0.2+1 f0.2 r0.2 B0.1 f0.1 r0.1 B0.0 f0.0 r0.0 E0 "
        "F1.0+1 f1.0 F1.1+2 f1.1 w L1.2+1 f1.2 r1.2 B1.1 f1.1 r1.1 B1.0 f1.0 r1.0 E1 w S");
}

TEST_CASE("a pipeline's stage waits for the last reduction of a microbatch behind the next block") {
  const Pipeline pipeline = make_pipeline({.kind = parallel::PipelineKind::k1F1B,
                                           .ranks = 2,
                                           .stages = {{0, 3}, {3, 5}},
                                           .microbatches = 3,
                                           .gathers_stages = false,
                                           .reduces_once = false});
  const auto order = [&](int rank) {
    Schedule all = pipeline_schedule(pipeline, rank, pipeline.make(/*training=*/true, 3));
    std::erase_if(all, [](Action& action) {
      action.prefetch.reset();
      return action.kind == ActionKind::kReshard || action.kind > ActionKind::kSumReplicated;
    });
    return text(all);
  };
  CHECK(order(0) ==
        "F0.0 F0.1 F0.2 F1.0 F1.1 F1.2 B0.2 r0.2 B0.1 r0.1 B0.0 r0.0 E0 F2.0 F2.1 w F2.2 "
        "B1.2 r1.2 B1.1 r1.1 B1.0 r1.0 E1 B2.2 r2.2 B2.1 r2.1 B2.0 r2.0 E2 w S");
  CHECK(order(1) ==
        "F0.3 L0.4 r0.4 B0.3 r0.3 E0 F1.3 w L1.4 r1.4 B1.3 r1.3 E1 F2.3 w L2.4 r2.4 B2.3 r2.3 E2 w S");
}

TEST_CASE("gradients that are reduced once are added up in each microbatch and sent in the last one") {
  CHECK(text(training_schedule(3, 2, {.reshard_after_forward = false, .reduce_once = true})) ==
        "F0.0+1 F0.1+2 L0.2+1 f0.2 a0.2 B0.1 f0.1 a0.1 B0.0 f0.0 a0.0 E0 "
        "F1.0+1 F1.1+2 L1.2+1 f1.2 r1.2 B1.1 f1.1 r1.1 B1.0 f1.0 r1.0 E1 w S");
  CHECK(text(training_schedule(3, 1, {.reduce_once = true})) ==
        text(training_schedule(3, 1, {.reduce_once = false})));
}

TEST_CASE("an evaluation is forwards alone") {
  CHECK(text(evaluation_schedule(4)) == "F0.0+1 f0.0 F0.1+2 f0.1 F0.2+3 f0.2 L0.3 f0.3 E0");
}

TEST_CASE("a divided backward sends its gradient first, and ends when its weight gradients are there") {
  const auto text_of = [](bool always, int rank) {
    const Pipeline pipeline = make_pipeline({.kind = parallel::PipelineKind::kZbvZeroBubble,
                                             .ranks = 2,
                                             .stages = {{0, 2}, {2, 3}, {3, 4}, {4, 6}},
                                             .gathers_stages = !always,
                                             .reduces_once = !always});
    return text(pipeline_schedule(pipeline, rank, pipeline.make(/*training=*/true, 1)));
  };
  // Rank 0 has the first and the last stage, of which the head runs in the input gradient's place.
  CHECK(text_of(/*always=*/true, 0) ==
        "F0.0+1 f0.0 F0.1 f0.1 >0.0 {0.0 F0.4+5 f0.4 L0.5+4 f0.5 r0.5 I0.4 f0.4 <0.0 W0.4 r0.4 E0 "
        "}0.0 I0.1 f0.1 w I0.0 f0.0 W0.1 r0.1 W0.0 r0.0 E0 w S");
  CHECK(text_of(/*always=*/true, 1) ==
        "{0.0 F0.2 f0.2 >0.0 F0.3 f0.3 >0.0 }0.0 I0.3 f0.3 <0.0 W0.3 r0.3 E0 I0.2 f0.2 w <0.0 W0.2 r0.2 "
        "E0 w S");
}

TEST_CASE("a unit's gradients are sent after its last backward, in whatever order a file has these") {
  PipelineSettings settings{.ranks = 2, .stages = {{0, 2}, {2, 4}}, .microbatches = 2};
  settings.listed = parallel::parse_csv_schedule("0F0,0F1,0I0,0I1,0W1,0W0\n1F0,1F1,1I0,1I1,1W1,1W0\n",
                                                 "order.csv", /*ranks=*/2, /*microbatches=*/2);
  const Pipeline pipeline = make_pipeline(settings);
  using Sent = std::vector<std::pair<size_t, size_t>>;  // microbatch and unit
  const auto sent = [&](int rank) {
    Sent found;
    for (const Action& action : pipeline_schedule(pipeline, rank, pipeline.make(/*training=*/true, 2))) {
      CHECK_FALSE(action.prefetch);  // of stages that are gathered as the list says
      CHECK(action.last == (action.kind == ActionKind::kReduce));
      if (action.kind == ActionKind::kReduce) found.emplace_back(action.microbatch, action.unit);
    }
    return found;
  };
  CHECK(sent(0) == Sent{{0, 1}, {0, 0}});
  CHECK(sent(1) == Sent{{1, 3}, {0, 2}});  // the head's with the first half
}

TEST_CASE("weights of the head are not gathered ahead of another microbatch") {
  const Pipeline pipeline = make_pipeline({.kind = parallel::PipelineKind::kGPipe,
                                           .ranks = 2,
                                           .stages = {{0, 2}, {2, 4}},
                                           .microbatches = 2,
                                           .gathers_stages = false});
  Schedule computes;
  for (const Action& action : pipeline_schedule(pipeline, /*rank=*/1, pipeline.make(/*training=*/true, 2)))
    if (action.kind <= ActionKind::kBackward) computes.push_back(action);
  CHECK(text(computes) == "F0.2 F1.2 L0.3+2 B0.2 L1.3+2 B1.2");
}

// What a list is as units' actions: nothing is lost, and a microbatch is kept as long as the plan says.
TEST_CASE("every schedule of a pipeline becomes its actions of units") {
  using enum parallel::PipelineKind;
  using parallel::PipelineOp;
  for (const auto kind :
       {kGPipe, k1F1B, kLoopedBfs, kInterleaved1F1B, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    for (const int ranks : {2, 4}) {
      for (const size_t batches : {1, 3}) {
        const int stages = ranks * (kind == kGPipe || kind == k1F1B ? 1 : 2);
        const size_t microbatches = 2 * static_cast<size_t>(ranks);
        const Pipeline pipeline = make_pipeline({.kind = kind,
                                                 .ranks = ranks,
                                                 .stages = parallel::split_units(stages, 16, {}),
                                                 .microbatches = microbatches,
                                                 .gathers_stages = batches == 1,
                                                 .reduces_once = batches == 1});
        const parallel::PipelineSchedule lists = pipeline.make(/*training=*/true, microbatches * batches);
        for (int rank = 0; rank < ranks; ++rank) {
          CAPTURE(text_of(kind), ranks, batches, rank);
          const Schedule units = pipeline_schedule(pipeline, rank, lists);
          // "2B0": both halves of the backward, or the first one.
          std::vector<std::string> expected, found;
          for (parallel::PipelineAction action : lists.ranks[static_cast<size_t>(rank)]) {
            if (action.op == PipelineOp::kInputGradient) action.op = PipelineOp::kBackward;
            if (parallel::is_compute(action.op)) expected.push_back(parallel::to_text(action));
          }
          std::map<size_t, int> last_reductions;
          std::set<std::pair<size_t, size_t>> begun;
          size_t kept = 0;
          for (const Action& action : units) {
            const bool computes = action.kind <= ActionKind::kWeightGradients;
            const std::pair started(action.stage, action.microbatch);
            const std::string step = fmt::format("{}{}{}", action.stage,
                                                 action.kind == ActionKind::kForward           ? 'F'
                                                 : action.kind == ActionKind::kWeightGradients ? 'W'
                                                                                               : 'B',
                                                 action.microbatch);
            if (computes && (found.empty() || found.back() != step)) found.push_back(step);
            if (action.kind == ActionKind::kForward) begun.insert(started);
            if (computes) CHECK(begun.contains(started));
            if (action.kind == ActionKind::kRetireMicrobatch) CHECK(begun.erase(started) == 1);
            if (action.kind == ActionKind::kReduce && action.last) ++last_reductions[action.unit];
            kept = std::max(kept, begun.size());
          }
          CHECK(found == expected);
          CHECK(begun.empty());
          CHECK(static_cast<int>(kept) ==
                parallel::max_microbatches_in_flight(lists)[static_cast<size_t>(rank)]);
          size_t own = 0;
          for (const UnitRange& range : units_of_rank(pipeline, rank)) own += range.end - range.first;
          CHECK(last_reductions.size() == own);
          for (const auto& [unit, count] : last_reductions) CHECK(count == 1);
        }
      }
    }
  }
}

TEST_CASE("the plan of a pipeline has what each rank holds and keeps, and warns of too few microbatches") {
  const models::ModelArgs model = models::model_args("deepseek_v3", "debugmodel");
  config::JobConfig config;
  config.parallelism.pipeline_parallel_degree = 2;
  config.training.local_batch_size = 4;
  const PipelinePlan plan = plan_pipeline(config, model, /*batches=*/1).value();
  REQUIRE(plan.shares.size() == 2);
  REQUIRE(plan.shares[0].size() == 1);
  const ModelStage &first = plan.shares[0][0], &last = plan.shares[1][0];
  CHECK((first.first_block == 0 && first.end_block == 3 && first.embedding && !first.head));
  CHECK((last.first_block == 3 && last.end_block == 6 && !last.embedding && last.head));
  CHECK((plan.ranks[0].max_in_flight == 2 && plan.ranks[1].max_in_flight == 1));
  CHECK(plan.ranks[0].parameters + plan.ranks[1].parameters ==
        Approx(static_cast<double>(models::count_parameters(model).total)));
  config.training.local_batch_size = 2;
  CHECK(plan_pipeline(config, model, 1)->warnings.empty());
  config.training.local_batch_size = 1;
  CHECK(plan_pipeline(config, model, 2)->warnings.empty());
  REQUIRE(plan_pipeline(config, model, 1)->warnings.size() == 1);
  CHECK_THAT(plan_pipeline(config, model, 1)->warnings[0], Catch::Contains("fewer than ranks"));

  config.parallelism.pipeline_parallel_microbatch_size = config.training.local_batch_size = 2;
  config.validation.local_batch_size = 3;
  CHECK(plan_pipeline(config, model, 1).has_value());
  config.validation.enable = true;
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { plan_pipeline(config, model, 1); }),
             Catch::Contains("validation.local_batch_size = 3 is no multiple of"));
}

TEST_CASE("a pipeline of microbatches that divide in a step alone validates any number") {
  using enum parallel::PipelineKind;
  for (const auto& [kind, microbatches] : {std::pair(kInterleaved1F1B, size_t{5}), {kDualPipeV, 3}}) {
    const Pipeline pipeline = make_pipeline(
        {.kind = kind, .ranks = 2, .stages = parallel::split_units(4, 4, {}), .microbatches = microbatches});
    CHECK_THROWS(pipeline.make(/*training=*/true, microbatches));
    CHECK(pipeline.make(/*training=*/true, 2 * microbatches).rank_of_stage == pipeline.rank_of_stage);
    CHECK(pipeline.make(/*training=*/false, 1).microbatches == 1);
  }
}

}  // namespace hyperion::trainer
