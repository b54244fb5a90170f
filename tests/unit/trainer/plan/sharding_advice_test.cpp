#include "trainer/plan/sharding_advice.h"

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
  // Experts that tensor parallel ranks divide, as the key says, want fewer expert parallel ones.
  config::JobConfig divided;
  divided.parallelism.expert_tensor_parallel_degree = 2;
  CHECK_THAT(sharding_advice(divided, large, parallel::Mesh({.dp_shard = 128, .tp = 2}, 256), 8).at(0),
             Contains("16 would leave 16 experts on a rank, 0.7 and 1.3 GiB"));
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

TEST_CASE("Ranks of different nodes that share sequences are warned of") {
  const auto advice = [](int context, int tensor, int ranks_per_node, const std::string& method = "allgather",
                         bool documents = false) {
    config::JobConfig config;
    config.parallelism.context_parallel_degree = context;
    config.training.document_mask = documents;
    config.parallelism.context_parallel_rotate_method = method;
    return sharding_advice(config, models::model_args("llama3", "8B"),
                           parallel::Mesh({.cp = context, .tp = tensor}, context * tensor), ranks_per_node);
  };
  CHECK(advice(8, 1, 8).empty());
  CHECK(advice(2, 2, 8).empty());
  const auto gathers = advice(8, 4, 8);
  REQUIRE(gathers.size() == 1);
  CHECK_THAT(gathers[0],
             Contains("parallelism.context_parallel_degree: 8 ranks share each sequence") &&
                 Contains("with tensor_parallel_degree = 4 they are 32 neighbours, and a node has 8") &&
                 Contains("or set context_parallel_rotate_method = \"alltoall\""));
  CHECK_THAT(advice(16, 1, 8, "alltoall")[0],
             Contains("16 neighbours") && Contains("under attention") && !Contains("lower one"));
  for (const char* method : {"allgather", "alltoall"})  // documents have no ring
    CHECK_THAT(advice(16, 1, 8, method, /*documents=*/true)[0],
               Contains("lower one of both") && !Contains("alltoall"));
  // A tensor parallel group that leaves its node is the reason that is named.
  CHECK_THAT(advice(2, 8, 4)[0], Contains("parallelism.tensor_parallel_degree"));
  CHECK(advice(2, 8, 4).size() == 1);
}

TEST_CASE("Gathered keys of long sequences without documents are warned of") {
  const auto advice = [](int64_t length, const std::string& method, bool documents = false, int context = 8) {
    config::JobConfig config;
    config.parallelism.context_parallel_degree = context;
    config.parallelism.context_parallel_rotate_method = method;
    config.training.seq_len = length;
    config.training.document_mask = documents;
    return sharding_advice(config, models::model_args("llama3", "8B"),
                           parallel::Mesh({.cp = context}, context), /*ranks_per_node=*/8);
  };
  const auto long_gathers = advice(65536, "allgather");
  REQUIRE(long_gathers.size() == 1);
  CHECK_THAT(long_gathers[0], Contains("parallelism.context_parallel_rotate_method = \"allgather\"") &&
                                  Contains("training.seq_len = 65536") &&
                                  Contains("set parallelism.context_parallel_rotate_method = \"alltoall\""));
  CHECK(advice(32768, "allgather").empty());
  CHECK(advice(65536, "alltoall").empty());
  CHECK(advice(65536, "allgather", /*documents=*/true).empty());
  CHECK(advice(65536, "allgather", false, /*context=*/1).empty());
}

TEST_CASE("ranks that share sequences send keys and values twice and fp32 sums of their gradients once") {
  config::JobConfig config;
  config.training.seq_len = 131072;
  config.training.local_batch_size = 2;
  const models::ModelArgs model = models::model_args("llama3", "8B");  // 8 kv heads of 128, 32 blocks
  const parallel::Mesh eight({.cp = 8}, 8);
  const double elements = 2.0 * 2 * 131072 * 8 * 128 * 7 / 8;
  const ContextTraffic gathered = context_traffic(config, model, eight);
  CHECK(gathered.forward == elements * 2);
  CHECK(gathered.backward == elements * (2 + 4));
  CHECK(gathered.step == 32 * elements * 8);
  config.parallelism.context_parallel_rotate_method = "alltoall";
  CHECK(context_traffic(config, model, eight).step == gathered.step);

  config.training.mixed_precision_param = checkpoint::Dtype::kFloat32;
  config.parallelism.tensor_parallel_degree = 8;
  CHECK(context_traffic(config, model, parallel::Mesh({.cp = 8, .tp = 8}, 64)).backward == elements * 8 / 8);

  // A pipeline's microbatches have one sequence, and its ranks a half of the blocks; four batches a step.
  config.parallelism = {};
  config.parallelism.pipeline_parallel_degree = 2;
  config.training.global_batch_size = 8;
  config.training.mixed_precision_param = checkpoint::Dtype::kBFloat16;
  const ContextTraffic stage = context_traffic(config, model, parallel::Mesh({.pp = 2, .cp = 8}, 16));
  CHECK(stage.forward == gathered.forward / 2);
  CHECK(stage.step == gathered.step / 2 * 4);

  const models::ModelArgs latent = models::model_args("deepseek_v3", "16B");  // 16 heads of 192
  CHECK(context_traffic({}, latent, parallel::Mesh({.cp = 2}, 2)).forward ==
        2.0 * config::JobConfig().training.local_batch_size *
            static_cast<double>(config::JobConfig().training.seq_len) * 16 * 192 * 1 / 2 * 2);
}

}  // namespace hyperion::trainer
