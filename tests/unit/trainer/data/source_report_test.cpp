#include "trainer/data/source_report.h"

#include <catch2/catch.hpp>

namespace hyperion::trainer {

TEST_CASE(
    "sources last as long as their epochs, and those that are left share the steps after one has ended") {
  // Steps of 100 tokens: 50 of the first, 25 of each other.
  std::vector<SourceFacts> sources = {{.weight = 2, .tokens = 1000, .max_epochs = 2},
                                      {.weight = 1, .tokens = 500},
                                      {.weight = 1, .tokens = 0, .max_epochs = 1}};
  const std::vector<SourcePlan> plans = plan_sources(sources, 100, 1, 60, /*stops_at_end=*/false);
  CHECK(plans[0].end_step == 41);  // 2000 tokens are 40 steps
  CHECK(plans[0].epochs == Approx(2));
  CHECK(plans[1].epochs == Approx((40 * 25 + 20 * 50) / 500.0));
  CHECK_FALSE(plans[2].end_step);  // its size is not known
  CHECK(plan_sources(sources, 100, 1, 60, /*stops_at_end=*/true)[1].epochs == Approx(2));
  CHECK_FALSE(plan_sources(sources, 100, 1, 40, true)[0].end_step);

  sources[0].consumed = 1500;  // a resumed job
  CHECK(plan_sources(sources, 100, 31, 60, true)[0].end_step == 41);
  sources[0].consumed = 2000;
  CHECK(plan_sources(sources, 100, 31, 60, true)[0].end_step == 31);
  sources[1].max_epochs = 1;
  sources[2] = {.weight = 1, .tokens = 100, .max_epochs = 1};
  const auto all = plan_sources(sources, 100, 1, 60, false);
  CHECK(all[2].end_step == 3);
  CHECK(all[1].end_step == 7);
}

TEST_CASE("the size of a source says what is known of it and what is estimated") {
  CHECK(describe_size({.files = 1, .bytes = 1}).ends_with(", tokens not known"));
  const std::string counted =
      describe_size({.files = 3, .bytes = 1 << 20, .documents = 1234, .tokens = 345678});
  CHECK_THAT(counted,
             Catch::StartsWith("3 files, 1.00 MiB") && Catch::EndsWith(", 1,234 documents, 345,678 tokens"));
  CHECK_THAT(describe_size({.files = 3, .bytes = 1 << 20, .tokens = 345678, .estimated = true}),
             Catch::Contains("about 345,678 tokens") && Catch::EndsWith(" (from a sample)"));
}

TEST_CASE("the plan of a job counts what its sources have consumed") {
  config::JobConfig config;
  config.training.seq_len = 10;
  config.training.steps = 20;
  config.training.local_batch_size = 5;
  const config::BatchSchedule batches(config.training, 1, {.steps = 5});
  const SourceSteps steps = {batches, 6};  // 50 tokens each
  const std::vector<SourceSize> sizes = {{.tokens = 1000.0}};
  data::LoaderState state;
  state.sources[0].tokens = 250;
  std::vector<data::SourceOptions> sets(1);
  CHECK(plan_of_job(config, sets, sizes, state, steps).front().epochs == Approx(1));
  state.sources = {{.name = "a", .tokens = 500}};
  sets.front().max_epochs = 1;
  const SourcePlan plan = plan_of_job(config, sets, sizes, state, steps).front();
  CHECK(plan.end_step == 16);  // 500 tokens are left for steps 6 to 15
  config.training.global_batch_ramp = {{0, 5}, {8, 10}, {10, 20}};
  const config::BatchSchedule ramp(config.training, 1, {.steps = 5});
  CHECK(plan_of_job(config, sets, sizes, state, {ramp, 6}).front().end_step == 11);  // 3 x 50, 2 x 100, 200
}

TEST_CASE("a source that starts over or has ended is an event of the step") {
  data::LoaderState before, after;
  before.sources = {{.name = "a", .share = 5}, {.name = "b", .share = 5}};
  after = before;
  CHECK(source_events(before, after, 3).empty());
  after.sources[0].position.epoch = 1;
  after.sources[1].position.epoch = 2;
  after.sources[1].share = 0;
  CHECK(source_events(before, after, 3) ==
        std::vector<std::string>{"The source a starts over in step 3: epoch 2",
                                 "The source b has ended in step 3 after 2 epochs: its max_epochs are read"});
  data::LoaderState one, later;
  later.sources[0].position.epoch = 1;
  CHECK(source_events(one, later, 7) ==
        std::vector<std::string>{"The training data start over in step 7: epoch 2"});
}

}  // namespace hyperion::trainer
