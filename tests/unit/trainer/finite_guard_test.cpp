#include "trainer/finite_guard.h"

#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/ops/full.h>

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
  Finish do_all_gather(const at::Tensor&, const at::Tensor&) override { return {}; }
  Finish do_reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override { return {}; }
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
  FiniteGuard guard(*group);
  guard.raise(true);  // before the first step
  CHECK(guard.check(1, {scalar(3.5), scalar(1e30)}, scalar(0), sequence).item<float>() == 0);
  guard.raise(false);
  guard.raise(true);
}

TEST_CASE("a loss that is not finite skips the update and names its step, value and sequences") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    FiniteGuard guard(*group);
    CHECK(guard.check(7, {scalar(3.5), scalar(bad)}, scalar(1), sequence).item<float>() == 1);
    const std::string text = raised(guard);
    CHECK_THAT(text, Contains("step 7: the loss or the gradient norm is not finite (norm 1)"));
    CHECK_THAT(text, Contains(std::isnan(bad) ? "nan on data.jsonl:11" : "inf on data.jsonl:11"));
    CHECK_THAT(text, !Contains("data.jsonl:10"));
  }
}

TEST_CASE("a norm that is not finite names all sequences of the step") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(*group);
  CHECK(guard.check(7, {scalar(3.5), scalar(2)}, scalar(INFINITY), sequence).item<float>() == 1);
  CHECK_THAT(raised(guard),
             Contains("(norm inf)") &&
                 Contains("this rank's losses are finite; its sequences were data.jsonl:10 data.jsonl:11"));
}

TEST_CASE("a number of another rank that is not finite skips the update here too") {
  NonFinitePeer group;
  FiniteGuard guard(group);
  CHECK(guard.check(7, {scalar(3.5)}, scalar(1), sequence).item<float>() == 1);
  CHECK_THAT(raised(guard), Contains("step 7") && Contains("this rank's losses are finite"));
}

TEST_CASE("a verdict that nobody has read is not lost when the next step is finite") {
  const auto group = parallel::make_solo_communicator("loss/0", 0);
  FiniteGuard guard(*group);
  guard.check(7, {scalar(NAN)}, scalar(1), sequence);
  guard.check(8, {scalar(2)}, scalar(1), sequence);
  CHECK_THAT(raised(guard), Contains("step 7"));
}

}  // namespace hyperion::trainer
