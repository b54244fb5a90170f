// What a rank's own work of a step is, on Gloo and through shared memory.
#include "parallel/comm/step_timer.h"

#include <chrono>
#include <functional>
#include <thread>

#include <catch2/catch.hpp>

#include <ATen/ops/ones.h>

#include "parallel/comm/process_group.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {

TEST_CASE("the time in which a rank waits for a slower one is not its own work") {
  const bool shared_memory = GENERATE(true, false);
  constexpr double kSlept = 1;  // seconds
  const auto own = run_ranks(3, [&](const Environment& environment) {
    CommOptions options;
    options.shared_memory = shared_memory;
    ProcessGroups groups(Mesh({}, 3), environment, options);
    groups.world().barrier();
    StepTimer timer(at::kCPU);
    if (environment.rank == 1) std::this_thread::sleep_for(std::chrono::duration<double>(kSlept));
    const at::Tensor sum = at::ones({1000});
    groups.world().all_reduce_sum(sum);
    groups.world().barrier();
    groups.host().gather("text");
    timer.stop();
    groups.world().barrier();  // is not measured
    return timer.own_seconds();
  });
  CHECK(own[1] >= kSlept);
  CHECK(own[0] < own[1]);
  CHECK(own[2] < own[1]);
}

TEST_CASE("waits of another thread, as of one that saves a checkpoint, are not taken off a rank's own work") {
  constexpr std::chrono::milliseconds kWaited{200};
  StepTimer timer(at::kCPU);
  std::thread other([&] {
    RankWait wait(at::kCPU);
    std::this_thread::sleep_for(kWaited);
    wait.done();
  });
  other.join();
  timer.stop();
  CHECK(timer.own_seconds() >= std::chrono::duration<double>(kWaited).count());
}

TEST_CASE("waits for transfers are those of the outermost wait, and a schedule's time has all of them") {
  const auto wait = [](RankWait::For what, const std::function<void()>& inside) {
    RankWait one(at::kCPU, what);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    inside();
    one.done();
  };
  const auto nothing = [] {};
  StepTimer timer(at::kCPU);
  ScheduleSpan schedule(at::kCPU);
  wait(RankWait::For::kTransfer, [&] { wait(RankWait::For::kAll, nothing); });
  wait(RankWait::For::kAll, [&] { wait(RankWait::For::kTransfer, nothing); });
  schedule.done();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  timer.stop();
  CHECK(timer.transfer_wait_seconds() >= 0.04);
  CHECK(timer.schedule_seconds() >= timer.transfer_wait_seconds() + 0.04);
  CHECK(timer.own_seconds() >= 0.02);
}

}  // namespace hyperion::parallel
