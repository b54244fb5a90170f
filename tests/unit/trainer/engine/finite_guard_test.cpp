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

}  // namespace hyperion::trainer
