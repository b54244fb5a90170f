// The learning-rate curve of a resumed run, without files or ranks.
#include <algorithm>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/unit/trainer/checkpointing/resumed_jobs.h"

namespace hyperion::checkpointing {

using Catch::Contains;
using Catch::EndsWith;

TEST_CASE("a new training.steps leaves the learning rate of every step as it was") {
  const ResumePlan before = fresh_plan(job(), facts());
  for (const char* steps : {"5", "9", "10"}) {
    const ResumePlan after = resume(job({{"training.steps", steps}}), 4);
    for (int64_t step = 1; step <= 10; ++step)
      CHECK(learning_rate(after, step) == learning_rate(before, step));
    CHECK(*find_setting(after.settings, "lr_scheduler.total_steps") == "10");
    if (std::string(steps) != "10") CHECK_THAT(joined(after.notes), Contains("keeps its 10 steps"));
  }
}

TEST_CASE("an explicit total_steps wins over the stored curve") {
  const ResumePlan plan = resume(job({{"lr_scheduler.total_steps", "40"}, {"training.steps", "40"}}), 4);
  CHECK(plan.config.lr_scheduler.total_steps == 40);
  CHECK_THAT(joined(plan.notes), Contains("from 10 to 40 steps"));
  CHECK(plan.warnings.empty());
}

TEST_CASE("a run that would train beyond its curve at a rate of 0 is refused with two ways out") {
  // Steps that are left lie there: all of them or only the last one.
  for (const int64_t step : {int64_t{4}, int64_t{9}, int64_t{10}, int64_t{11}})
    for (const char* steps : {"12", "20"}) {
      const std::string text = refusal([&] { resume(job({{"training.steps", steps}}), step); });
      CHECK_THAT(text, Contains("ends at step 10") &&
                           Contains(fmt::format("steps {} to training.steps = {}",
                                                std::max<int64_t>(step, 10) + 1, steps)) &&
                           Contains(fmt::format("start with --lr_scheduler.total_steps={} for", steps)) &&
                           EndsWith("or with --lr_scheduler.min_lr_factor=0.1 "
                                    "--checkpoint.on_config_change=override for a floor"));
      CHECK_NOTHROW(resume(job({{"training.steps", steps}, {"lr_scheduler.total_steps", steps}}), step));
      CHECK_NOTHROW(resume(job({{"training.steps", steps},
                                {"lr_scheduler.min_lr_factor", "0.1"},
                                {"checkpoint.on_config_change", "override"}}),
                           step));
    }
  CHECK_NOTHROW(resume(job(), 10));  // nothing is left to train
  CHECK_NOTHROW(resume(job({{"training.steps", "11"}}), 11));
}

TEST_CASE("a new run whose curve is too short is refused too, and needs no permission for a floor") {
  const config::Override more = {"training.steps", "12"}, curve = {"lr_scheduler.total_steps", "10"};
  const std::string text = refusal([&] { fresh_plan(job({more, curve}), facts()); });
  CHECK_THAT(text, Contains("steps 11 to training.steps = 12") && Contains("total_steps=12 ") &&
                       EndsWith("with --lr_scheduler.min_lr_factor=0.1 for a floor"));
  const ResumePlan floor = fresh_plan(job({more, curve, {"lr_scheduler.min_lr_factor", "0.1"}}), facts());
  CHECK_THAT(joined(floor.warnings), Contains("ends at step 10") && Contains("lr = 0.01"));
  CHECK_NOTHROW(fresh_plan(job({more, curve, {"optimizer.lr", "0"}}), facts()));
  CHECK_NOTHROW(fresh_plan(job({more, curve, {"lr_scheduler.decay_ratio", "0"}}), facts()));  // stays at 1
}

TEST_CASE("a run of the usual kind passes, however small the rate of its last step is") {
  for (const char* type : {"linear", "sqrt", "cosine"})
    for (const char* ratio : {"None", "0", "0.001", "1"})
      for (const char* warmup : {"0", "1", "999", "1000", "2000"})
        CHECK_NOTHROW(fresh_plan(job({{"training.steps", "1000"},
                                      {"lr_scheduler.warmup_steps", warmup},
                                      {"lr_scheduler.decay_type", type},
                                      {"lr_scheduler.decay_ratio", ratio}}),
                                 facts()));
  CHECK_NOTHROW(fresh_plan(job({{"training.steps", "1"}, {"lr_scheduler.warmup_steps", "0"}}), facts()));
  CHECK_NOTHROW(
      fresh_plan(job({{"training.steps", "1000000000"}, {"lr_scheduler.decay_type", "cosine"}}), facts()));
}

TEST_CASE("the remedies of a refused curve suit the way in which the job resumes") {
  const std::vector<config::Override> transferred = {{"checkpoint.enable", "true"},
                                                     {"checkpoint.resume_mode", "transfer"},
                                                     {"checkpoint.initial_load_path", "old/step-10"},
                                                     {"training.steps", "20"}};
  CHECK_THAT(
      refusal([&] { resume(job(transferred), 9); }),  // its own second start recovers
      EndsWith("=0.1 --checkpoint.resume_mode=recover --checkpoint.on_config_change=override for a floor"));
  CHECK_THAT(refusal([&] {
               resume(job({{"checkpoint.resume_mode", "continue"}, {"training.steps", "20"}}), 9);
             }),
             EndsWith("with --lr_scheduler.min_lr_factor=0.1 for a floor"));
  // A curve that began later counts its steps from there.
  CurveSettings stored = fresh_plan(job(), facts()).settings;
  set_setting(stored, "lr_scheduler.start_step", "10");
  const auto longer = [&](const std::vector<config::Override>& overrides) {
    return resume_plan(job(overrides), facts(), {LoadSource::kOwn, all(), stored, 15});
  };
  CHECK_THAT(refusal([&] {
               longer({{"training.steps", "30"}});
             }),
             Contains("ends at step 20") && Contains("start with --lr_scheduler.total_steps=20 for"));
  CHECK_NOTHROW(longer({{"training.steps", "30"}, {"lr_scheduler.total_steps", "20"}}));
}

TEST_CASE("a run beyond its curve stays at the floor and says so once") {
  const config::ResolvedConfig now = job({{"training.steps", "30"},
                                          {"lr_scheduler.min_lr_factor", "0.1"},
                                          {"checkpoint.on_config_change", "override"}});
  const ResumePlan plan = resume(now, 8);
  REQUIRE(plan.warnings.size() == 1);
  CHECK_THAT(plan.warnings[0], Contains("ends at step 10") && Contains("lr = 0.01"));
  double last = 1;
  for (int64_t step = 9; step <= 30; ++step) {
    CHECK(learning_rate(plan, step) >= 0.01 - 1e-12);
    CHECK(learning_rate(plan, step) <= last);
    last = learning_rate(plan, step);
  }
}

}  // namespace hyperion::checkpointing
