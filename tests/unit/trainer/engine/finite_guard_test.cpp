#include "trainer/engine/finite_guard.h"

#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "tests/support/error_of.h"

namespace hyperion::trainer {

using Catch::Contains;

namespace {

at::Tensor scalar(double value) {
  return at::full({}, value, at::TensorOptions(at::kFloat));
}

std::string sequence(size_t microbatch) {
  return "data.jsonl:" + std::to_string(10 + microbatch);
}

// A group of two whose other rank has always seen a number that is not finite.
class NonFinitePeer : public parallel::Communicator {
 public:
  NonFinitePeer() : parallel::Communicator("loss/0", 0, {0, 1}) {}
  std::string_view backend() const override { return "test"; }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Finish do_all_gather(const std::vector<parallel::CollectivePart>&) override { return {}; }
  Finish do_reduce_scatter_sum(const std::vector<parallel::CollectivePart>&) override { return {}; }
  Finish do_all_reduce(const at::Tensor& tensor, bool) override {
    tensor.fill_(1);
    return {};
  }
  Finish do_barrier() override { return {}; }
};

std::string raised(FiniteGuard& guard) {
  return error_of(ExitCode::kNonFinite, [&] { guard.raise(false); });
}

}  // namespace

TEST_CASE("finite losses and a finite norm let the optimizer update") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}));
  guard.raise(true);  // before the first step
  CHECK(guard.check({1}, {scalar(3.5), scalar(1e30)}, scalar(0), scalar(0.5), sequence).skip.item<float>() ==
        0);
  guard.raise(false);
  guard.raise(true);
}

TEST_CASE("a loss that is not finite skips the update and names its step, value and sequences") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    FiniteGuard guard(parallel::ReduceChain({group.get()}));
    CHECK(guard.check({7}, {scalar(3.5), scalar(bad)}, scalar(1), scalar(0.5), sequence).skip.item<float>() ==
          1);
    const std::string text = raised(guard);
    CHECK_THAT(text, Contains("step 7: the loss or the gradient norm is not finite (norm 1)"));
    CHECK_THAT(text, Contains(std::isnan(bad) ? "nan on data.jsonl:11" : "inf on data.jsonl:11"));
    CHECK_THAT(text, !Contains("data.jsonl:10"));
  }
}

TEST_CASE("a norm that is not finite names all sequences of the step") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}));
  CHECK(guard.check({7}, {scalar(3.5), scalar(2)}, scalar(INFINITY), scalar(0.5), sequence)
            .skip.item<float>() == 1);
  CHECK_THAT(raised(guard),
             Contains("(norm inf)") &&
                 Contains("this rank's losses are finite; its sequences were data.jsonl:10 data.jsonl:11"));
}

TEST_CASE("a number of another rank that is not finite skips the update here too") {
  NonFinitePeer group;
  FiniteGuard guard(parallel::ReduceChain({&group}));
  CHECK(guard.check({7}, {scalar(3.5)}, scalar(1), scalar(0.5), sequence).skip.item<float>() == 1);
  CHECK_THAT(raised(guard), Contains("step 7") && Contains("this rank's losses are finite"));
}

TEST_CASE("a verdict that nobody has read is not lost when the next step is finite") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}));
  guard.check({7}, {scalar(NAN)}, scalar(1), scalar(0.5), sequence);
  guard.check({8}, {scalar(2)}, scalar(1), scalar(0.5), sequence);
  CHECK_THAT(raised(guard), Contains("step 7"));
}

TEST_CASE(
    "a step without a token to predict skips the update and is bad data, not a loss that is not finite") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}));
  const at::Tensor scale = inverse_of(at::zeros({}, at::TensorOptions(at::kLong)));
  CHECK(guard.check({7}, {scalar(0)}, scalar(0), scale, sequence).skip.item<float>() == 1);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { guard.raise(false); }),
             Contains("training: none of the step's tokens has a label to learn from"));
}

TEST_CASE(
    "what a rank tells the others is known with the verdict of its step, and an older verdict changes "
    "nothing") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}));
  guard.check({7}, {scalar(1)}, scalar(1), scalar(1), sequence);
  guard.raise(true);
  CHECK(guard.agreed().step == 7);
  CHECK(guard.agreed().stop == StopSignal::kNone);
  guard.check({8, StopSignal::kTerminate, /*save_failed=*/true}, {scalar(1)}, scalar(1), scalar(1), sequence);
  guard.raise(true);
  guard.raise(false);
  CHECK(guard.agreed().step == 8);
  CHECK(guard.agreed().stop == StopSignal::kTerminate);
  CHECK(guard.agreed().save_failed);
}

TEST_CASE("ranks that are two groups in turn agree on a verdict that only one group has seen") {
  const auto shards = parallel::make_solo_communicator("fsdp/0", 0);
  NonFinitePeer replicas;
  FiniteGuard guard(parallel::ReduceChain({shards.get(), &replicas}));
  CHECK(guard.check({7}, {scalar(3.5)}, scalar(1), scalar(1), sequence).skip.item<float>() == 1);
  CHECK_THAT(raised(guard), Contains("step 7"));
}

TEST_CASE("a step that is not finite is left out where the rules say so, until there are too many") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(parallel::ReduceChain({group.get()}),
                    {.non_finite = true, .window = 10, .max_skipped = 2});
  std::vector<std::string> skipped;
  guard.on_skip = [&](int64_t step, const std::string& reason) {
    skipped.push_back(std::to_string(step) + " " + reason);
  };
  const auto step = [&](int64_t number, double loss) {
    const at::Tensor skip = guard.check({number}, {scalar(loss)}, scalar(1), scalar(0.5), sequence).skip;
    CHECK(skip.item<float>() == (std::isfinite(loss) ? 0 : 1));
    guard.raise(true);
    guard.raise(true);  // reads the same step again
  };
  step(1, NAN);
  step(2, 1);
  step(3, INFINITY);
  REQUIRE(skipped.size() == 2);
  CHECK_THAT(skipped[0],
             Contains("1 the loss or the gradient norm is not finite (norm 1); loss nan on data.jsonl:10"));
  for (int64_t number = 4; number <= 10; ++number) step(number, 1);
  step(11, NAN);  // step 1 has left the window
  CHECK(guard.skips(11).skipped == 3);
  CHECK((guard.skips(11).recent == std::vector<int64_t>{3, 11}));
  guard.check({12}, {scalar(NAN)}, scalar(1), scalar(0.5), sequence);
  CHECK_THAT(error_of(ExitCode::kNonFinite, [&] { guard.raise(true); }),
             Contains("3 of the last 10 steps were left out, and training.max_skipped_steps is 2"));
}

TEST_CASE("a norm far above those before it is left out, and a resumed guard decides the same") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  const SkipRules rules{.above_norm = 4, .window = 8, .max_skipped = 100};
  FiniteGuard guard(parallel::ReduceChain({group.get()}), rules);
  const auto skips = [&](FiniteGuard& of, int64_t step, double norm) {
    const bool skip =
        of.check({step}, {scalar(3)}, scalar(norm), scalar(0.5), sequence).skip.item<float>() != 0;
    of.raise(true);
    return skip;
  };
  CHECK_FALSE(skips(guard, 1, 100));  // too few norms to know
  for (int64_t step = 2; step <= 9; ++step) CHECK_FALSE(skips(guard, step, step % 2 == 0 ? 1.0 : 1.2));
  CHECK(skips(guard, 10, 1.6));         // mean 1.1, deviation 0.1
  CHECK_FALSE(skips(guard, 11, 1.45));  // 3.5 deviations
  CHECK(skips(guard, 12, 50));
  CHECK_FALSE(skips(guard, 13, 0.01));  // a small norm is no spike
  const SkipState saved = guard.skips(13);
  CHECK(saved.skipped == 2);
  CHECK(saved.norms.size() == 8);
  FiniteGuard again(parallel::ReduceChain({group.get()}), rules);
  again.restore(13, saved);
  for (int64_t step = 14; step < 40; ++step) {
    const double norm = 1 + 0.2 * static_cast<double>(step % 3) + (step % 7 == 0 ? 3 : 0);
    CHECK(skips(again, step, norm) == skips(guard, step, norm));
  }
  CHECK(again.skips(39).skipped > 2);
  CHECK(again.skips(39).norms == guard.skips(39).norms);
  FiniteGuard shorter(parallel::ReduceChain({group.get()}), {.above_norm = 4, .window = 4});
  shorter.restore(13, saved);
  CHECK((shorter.skips(13).norms == std::vector<double>(saved.norms.end() - 4, saved.norms.end())));
}

}  // namespace hyperion::trainer
