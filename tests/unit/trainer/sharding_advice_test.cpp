#include "trainer/sharding_advice.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"

namespace hyperion::trainer {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> advice_for(const char* flavor, int shard, int replicate = 1, int tensor = 1,
                                    int ranks_per_node = 8) {
  config::JobConfig config;
  config.parallelism.tensor_parallel_degree = tensor;
  return sharding_advice(config, models::model_args("llama3", flavor),
                         parallel::Mesh({.dp_replicate = replicate, .dp_shard = shard, .tp = tensor},
                                        shard * replicate * tensor),
                         ranks_per_node);
}

}  // namespace

TEST_CASE("FSDP without replicas over more than 512 ranks is told the degrees of HSDP that fit") {
  CHECK(advice_for("8B", 8).empty());
  CHECK(advice_for("8B", 512).empty());
  CHECK(advice_for("8B", 64, 256).empty());

  const auto many = advice_for("8B", 1024);
  REQUIRE(many.size() == 1);
  CHECK_THAT(many[0], Contains("sharded over 1,024 ranks without replicas"));
  CHECK_THAT(many[0], Contains("data_parallel_shard_degree = 64 with data_parallel_replicate_degree = 16"));
  CHECK_THAT(many[0], Contains("2.1 GiB instead of 0.1 GiB per rank"));

  // A model of which 64 ranks could not hold a copy is sharded over more.
  const auto large = advice_for("405B", 2048);
  REQUIRE(large.size() == 1);
  CHECK_THAT(large[0], Contains("data_parallel_shard_degree = 256 with data_parallel_replicate_degree = 8"));

  // A prime number of ranks has no degrees to propose.
  const auto prime = advice_for("8B", 521);
  REQUIRE(!prime.empty());
  CHECK_THAT(prime[0], Contains("sharded over 521 ranks") && !Contains("HSDP"));
}

TEST_CASE("Shards that are mostly padding are said with the parameters that have too few rows") {
  const auto advice = advice_for("8B", 16384);
  REQUIRE(advice.size() == 2);
  CHECK_THAT(advice[1], Contains("16,384 shards"));
  CHECK_THAT(advice[1], Contains("move 2.67 times the model's bytes, 63 % of them padding"));
  CHECK_THAT(advice[1], Contains("attention.wk.weight with 1,024 rows 16.0"));
  CHECK(advice_for("8B", 4096).size() == 2);
  CHECK(advice_for("8B", 4096, 2).size() == 1);  // replicas change nothing about the padding
}

TEST_CASE("Padding is that of the parts which tensor parallel ranks hold") {
  // Of the 1,024 rows of wk each of 8 ranks has 128, which 256 shards pad to twice their number.
  CHECK(advice_for("8B", 256).empty());
  const auto advice = advice_for("8B", 512, 1, 8);
  REQUIRE(advice.size() == 1);
  CHECK_THAT(advice[0], Contains("attention.wk.weight with 128 rows 4.0"));
}

TEST_CASE("Expert parallelism leaves experts for every rank that shards them") {
  const models::ModelArgs model = models::model_args("deepseek_v3", "671B");  // 256 experts
  const auto advice = sharding_advice({}, model, parallel::Mesh({.dp_shard = 512}, 512), 8);
  REQUIRE(advice.size() == 2);
  CHECK_THAT(advice[1], Contains("moe.experts.w1 with 256 rows 2.0"));
  CHECK(sharding_advice({}, model, parallel::Mesh({.dp_shard = 512, .ep = 4}, 512), 8).empty());
}

TEST_CASE("Experts of a block that fill a GPU are warned of, with a degree that divides them") {
  const models::ModelArgs large = models::model_args("deepseek_v3", "671B");
  const auto advice = [&](const models::ModelArgs& model, int64_t shards, int64_t tensor, int64_t experts) {
    const auto all = sharding_advice({}, model,
                                     parallel::Mesh({.dp_shard = static_cast<int>(shards),
                                                     .tp = static_cast<int>(tensor),
                                                     .ep = static_cast<int>(experts)},
                                                    static_cast<int>(shards * tensor)),
                                     8);
    return all.empty() ? std::string() : all[0];
  };
  // 3 x 256 x 7168 x 2048 numbers.
  CHECK_THAT(
      advice(large, 256, 1, 1),
      Contains("parallelism.expert_parallel_degree = 1: each rank gathers all 256 experts of a block, 21.0 "
               "GiB, and has 42.0 GiB of their gradients before it shares them; 32 would leave 8 experts "
               "on a rank, 0.7 and 1.3 GiB"));
  // Of 2 tensor parallel ranks each has a half of every expert; with expert parallelism it has complete ones.
  CHECK_THAT(advice(large, 128, 2, 1), Contains("10.5 GiB, and has 21.0 GiB of their gradients") &&
                                           Contains("32 would leave 8 experts on a rank, 0.7 and 1.3 GiB"));
  CHECK_THAT(advice(large, 24, 1, 1), Contains("before it shares them") && !Contains("would leave"));
  CHECK(advice(large, 256, 1, 64).empty());
  CHECK(advice(large, 32, 8, 1).empty());  // which divide each expert
  CHECK(advice(models::model_args("deepseek_v3", "16B"), 8, 1, 1).empty());
  CHECK(advice(models::model_args("llama3", "405B"), 8, 1, 1).empty());
}

TEST_CASE("Tensor parallel ranks of different nodes are warned of") {
  CHECK(advice_for("8B", 1, 1, 8, 8).empty());
  CHECK(advice_for("8B", 1, 1, 4, 8).empty());
  const auto advice = advice_for("8B", 2, 1, 8, 4);
  REQUIRE(advice.size() == 1);
  CHECK_THAT(advice[0], Contains("parallelism.tensor_parallel_degree: 8 ranks divide each layer") &&
                            Contains("a node has 4 ranks") && Contains("choose a divisor of 4"));
}

}  // namespace hyperion::trainer
