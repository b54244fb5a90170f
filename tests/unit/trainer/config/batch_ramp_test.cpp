// The batch of each step of a ramp.
#include "trainer/config/batch_ramp.h"

#include <catch2/catch.hpp>

namespace hyperion::config {
namespace {

JobConfig::Training training_of(BatchRamp ramp, RampUnit unit = RampUnit::kSteps) {
  JobConfig::Training training;
  training.local_batch_size = 2;
  training.seq_len = 10;
  training.global_batch_ramp = std::move(ramp);
  training.global_batch_ramp_unit = unit;
  return training;
}

}  // namespace

TEST_CASE("a job without a ramp has one batch") {
  JobConfig::Training training = training_of({});
  CHECK(BatchSchedule(training, 4).stages() == std::vector<BatchStage>{{1, 8}});
  training.global_batch_size = 24;
  const BatchSchedule schedule(training, 4);
  CHECK((schedule.sequences_of(1) == 24 && schedule.sequences_of(1000) == 24));
  CHECK((schedule.microbatches_of(7) == 3 && schedule.sequences_up_to(3) == 72));
  CHECK(common_batch_of(training) == 24);
}

TEST_CASE("a ramp in steps changes the batch after so many steps") {
  const BatchSchedule schedule(training_of({{0, 4}, {3, 8}, {5, 24}}), 2);
  const std::vector<int64_t> expected = {4, 4, 4, 8, 8, 24, 24};
  int64_t sum = 0;
  for (int64_t step = 1; step <= 7; ++step) {
    CHECK(schedule.sequences_of(step) == expected[static_cast<size_t>(step - 1)]);
    CHECK(schedule.microbatches_of(step) == schedule.sequences_of(step) / 4);
    for (int64_t n = sum + 1; n <= sum + schedule.sequences_of(step); ++n)
      CHECK(schedule.step_of_sequence(n) == step);
    CHECK(schedule.sequences_up_to(step) == (sum += schedule.sequences_of(step)));
    CHECK(schedule.tokens_of(step) == 10 * schedule.sequences_of(step));
  }
  CHECK(schedule.describe() == "4 sequences from step 1, 8 from step 4, 24 from step 6");
  CHECK(common_batch_of(training_of({{0, 16}, {3, 24}})) == 8);
}

TEST_CASE("a ramp in tokens changes the batch in the first step that begins with so many") {
  // Steps of 40 tokens; 100 are done before step 4 (120). Steps of 80; 200 are done before step 5 (200).
  const auto training = training_of({{0, 4}, {100, 8}, {200, 24}}, RampUnit::kTokens);
  CHECK(BatchSchedule(training, 2).stages() == std::vector<BatchStage>{{1, 4}, {4, 8}, {5, 24}});
  // A stage that is over before it has a step.
  CHECK(BatchSchedule(training_of({{0, 4}, {100, 8}, {110, 16}}, RampUnit::kTokens), 2).stages() ==
        std::vector<BatchStage>{{1, 4}, {4, 16}});
}

TEST_CASE("a ramp goes on from what was trained") {
  for (const RampUnit unit : {RampUnit::kSteps, RampUnit::kTokens}) {
    const JobConfig::Training training =
        training_of(unit == RampUnit::kSteps ? BatchRamp{{0, 4}, {3, 8}, {6, 24}}
                                             : BatchRamp{{0, 4}, {100, 8}, {390, 24}},
                    unit);
    const BatchSchedule all(training, 2);
    for (int64_t done = 0; done < 10; ++done) {
      const BatchSchedule rest(training, 1, {done, all.sequences_up_to(done) * 10});
      for (int64_t step = done + 1; step < 12; ++step)
        CHECK(rest.sequences_of(step) == all.sequences_of(step));
      CHECK(rest.sequences_up_to(11) == all.sequences_up_to(11) - all.sequences_up_to(done));
    }
  }
}

}  // namespace hyperion::config
