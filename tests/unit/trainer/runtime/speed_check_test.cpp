#include "trainer/runtime/speed_check.h"

#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

namespace hyperion::trainer {

TEST_CASE("a card more than a tenth below the median is named with its host and what is slow") {
  std::vector<CardSpeed> cards;
  for (int rank = 0; rank < 16; ++rank) cards.push_back({rank < 8 ? "n0" : "n1", rank, 700, 2600});
  cards[3].tflops = 640;  // 8.6 % below
  CHECK(slow_cards(cards).empty());
  cards[9].tflops = 500;
  cards[11].copy_gbs = 1300;
  const auto found = slow_cards(cards);
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0], Catch::Contains("rank 9 on n1 multiplies at 500 TFLOP/s, 71 % of the median of 700"));
  CHECK_THAT(found[1], Catch::Contains("rank 11 on n1 copies at 1300 GB/s, 50 %"));
  for (int rank = 0; rank < 7; ++rank) cards[rank].copy_gbs = 100;
  CHECK(slow_cards(cards).size() <= 8);
}

TEST_CASE("a throttled card is named with its clocks, slow or not") {
  std::vector<CardSpeed> cards;
  for (int rank = 0; rank < 4; ++rank)
    cards.push_back({"n0", rank, 700, 2600, "SM at 1400 MHz, 690 W, 60 C"});
  CHECK(slow_cards(cards).empty());
  cards[1].throttled = "thermal";
  cards[1].tflops = 500;
  cards[2].throttled = "power_brake";
  cards[2].clocks = "";
  const auto found = slow_cards(cards);
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0], Catch::Contains("rank 1 on n0 multiplies at 500 TFLOP/s, 71 % of the median of 700, "
                                       "throttled (thermal) with SM at 1400 MHz, 690 W, 60 C: all ranks"));
  CHECK_THAT(found[1],
             Catch::Contains("rank 2 on n0 multiplies at 700 TFLOP/s, throttled (power_brake): look at"));
}

TEST_CASE("measured products are of normal values and leave the job's generator as it is") {
  const at::Generator job = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = job.get_state();
  const at::Tensor a = normal_values(1000, at::kCPU, 1), b = normal_values(1000, at::kCPU, 2);
  CHECK(job.get_state().equal(state));
  CHECK(a.sizes() == at::IntArrayRef{1000, 1000});
  CHECK(a.scalar_type() == at::kBFloat16);
  for (const at::Tensor& values : {a, b}) {
    const at::Tensor wide = values.to(at::kFloat);
    CHECK(std::abs(wide.mean().item<float>()) < 0.01);  // 512 x 512 draws: five standard errors
    CHECK(std::abs(wide.std().item<float>() - 1) < 0.01);
    CHECK(values.count_nonzero().item<int64_t>() > 990000);
  }
  CHECK_FALSE(a.equal(b));
  CHECK(a.equal(normal_values(1000, at::kCPU, 1)));  // the same on every card
}

TEST_CASE("a group over hosts that exchanges as over TCP is named and one inside a host is not") {
  CHECK(slow_groups({{"tp/0", 8, 8, 5, 5}}).empty());  // PCI Express alone
  CHECK(slow_groups({{"tp/0", 8, 8, 350, 350}, {"fsdp/0", 32, 4, 62, 60}}).empty());
  CHECK(
      slow_groups({{"tp/0", 8, 8, 350, 350}, {"fsdp/0", 32, 1, 45, 45}}).empty());  // an adapter of 400 Gb/s
  const auto tcp = slow_groups({{"tp/0", 8, 8, 350, 350}, {"fsdp/0", 32, 1, 2.5, 2.4}});
  REQUIRE(tcp.size() == 1);
  CHECK_THAT(tcp[0], Catch::Contains("group fsdp/0 of 32 ranks over several hosts exchanges at 2.4 GB/s") &&
                         Catch::Contains("inside a host at 350") && Catch::Contains("OFI"));
  // One adapter of eight.
  CHECK(slow_groups({{"tp/0", 8, 8, 400, 400}, {"fsdp/0", 32, 8, 50, 50}}).size() == 1);
}

TEST_CASE("ranks of a group on one host are counted by their hosts and not by how they are numbered") {
  const std::vector<std::string> by_node = {"n0 0", "n0 0", "n1 1", "n1 1"},
                                 cyclic = {"n0 0", "n1 1", "n0 0", "n1 1"};
  CHECK(ranks_on_host(by_node, {2, 3}, 3) == 2);
  CHECK(ranks_on_host(by_node, {1, 3}, 3) == 1);
  CHECK(ranks_on_host(cyclic, {2, 3}, 3) == 1);
  CHECK(ranks_on_host(cyclic, {1, 3}, 3) == 2);
}

}  // namespace hyperion::trainer
