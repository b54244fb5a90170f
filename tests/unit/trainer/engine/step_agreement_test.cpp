#include "trainer/engine/step_agreement.h"

#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include <ATen/ops/full.h>

namespace hyperion::trainer {
namespace {

uint32_t bits(float value) {
  uint32_t result = 0;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// A group in which every other rank has told the same.
class Peers : public parallel::Communicator {
 public:
  explicit Peers(int size) : parallel::Communicator("peers/0", 0, std::vector<int>(size)) {}
  std::string_view backend() const override { return "test"; }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Finish do_all_gather(const std::vector<parallel::CollectivePart>&) override { return {}; }
  Finish do_reduce_scatter_sum(const std::vector<parallel::CollectivePart>&) override { return {}; }
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    if (!max) tensor.mul_(size());
    return {};
  }
  Finish do_barrier() override { return {}; }
};

}  // namespace

TEST_CASE("the loss is scaled by the bits that a division on the host gives") {
  std::mt19937_64 random(1);
  for (int64_t i = 1; i <= 20'000; ++i) {
    const auto tokens = i <= 10'000 ? i : static_cast<int64_t>(random() >> (16 + random() % 40));
    if (tokens == 0) continue;
    const float scale = inverse_of(at::full({}, tokens, at::TensorOptions(at::kLong))).item<float>();
    if (bits(scale) != bits(static_cast<float>(1.0 / static_cast<double>(tokens)))) FAIL(tokens);
  }
}

TEST_CASE("valid tokens add up exactly over groups in turn") {
  Peers shards(8), replicas(2048);
  const parallel::ReduceChain groups({&shards, &replicas});
  const int64_t tokens = (int64_t{1} << 40) + 1;
  CHECK(sum_valid_tokens(groups, tokens, at::kCPU).item<int64_t>() == tokens * 16'384);
}

TEST_CASE("on the host TERM counts more than Ctrl-C, and one rank's failed save is every rank's") {
  Peers ranks(3);
  const StepTotals quiet = exchange_on_host(ranks, 5, {.step = 4});
  CHECK(quiet.valid_tokens == 15);
  CHECK(quiet.flags.step == 4);
  CHECK(quiet.flags.stop == StopSignal::kNone);
  CHECK(!quiet.flags.save_failed);
  CHECK(exchange_on_host(ranks, 0, {4, StopSignal::kInterrupt, true}).flags.stop == StopSignal::kInterrupt);
  const StepFlags told = exchange_on_host(ranks, 0, {4, StopSignal::kTerminate, true}).flags;
  CHECK(told.stop == StopSignal::kTerminate);
  CHECK(told.save_failed);
}

}  // namespace hyperion::trainer
