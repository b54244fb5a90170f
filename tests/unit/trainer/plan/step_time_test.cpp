#include "trainer/plan/step_time.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"
#include "tests/unit/trainer/plan/job_sizes.h"
#include "trainer/plan/block_work.h"
#include "trainer/plan/sharding_advice.h"

namespace hyperion::trainer {
namespace {

using parallel::Mesh, parallel::MeshDim;

Card simple_card() {
  Card card{.memory = 3e12, .casts = 3e12, .link = 400, .link_share = 0.1, .network_share = 1};
  card.flops.fill(5e14);
  return card;
}

double rate(MeshDim group, const parallel::MeshConfig& degrees, int world, int node = 8) {
  return ring_rate(group, {Mesh(degrees, world), {.gpus_per_node = node, .network = 10}, simple_card()});
}

}  // namespace

TEST_CASE("A ring is as fast as its node with the fewest ranks lets it leave") {
  CHECK(rate(MeshDim::kTp, {.dp_shard = 3, .tp = 8}, 24) == 400);
  CHECK(rate(MeshDim::kFsdp, {.dp_shard = 3, .tp = 8}, 24) == 10);
  CHECK(rate(MeshDim::kFsdp, {.dp_shard = 16, .tp = 2}, 32) == 40);
  CHECK(rate(MeshDim::kDpReplicate, {.dp_replicate = 4, .dp_shard = 8}, 32) == 10);
  // Ranks 6 to 8 share a sequence, and rank 8 is on another node.
  CHECK(rate(MeshDim::kCp, {.dp_shard = 8, .cp = 3}, 24) == 10);
  // Ranks 6 to 11: two on the first node, four on the second.
  CHECK(rate(MeshDim::kTp, {.dp_shard = 4, .tp = 6}, 24) == 20);
  CHECK(rate(MeshDim::kTp, {.tp = 6}, 6) == 400);
  // Ranks 64 to 127 of nodes of 72: eight on the first.
  CHECK(rate(MeshDim::kFsdp, {.dp_replicate = 9, .dp_shard = 64}, 576, 72) == 80);
  CHECK(rate(MeshDim::kFsdp, {.dp_shard = 64}, 64, 72) == 400);
}

TEST_CASE("Exposed exchange is that of the group that waits") {
  const Mesh mesh({.dp_shard = 8, .tp = 8}, 64);
  StepWork work;
  work.kernels.push_back({.family = Family::kProducts, .times = 10, .bytes = 3e12});
  work.collectives.push_back({MeshDim::kFsdp, 4, 10, true});
  work.collectives.push_back({MeshDim::kTp, 5, 800, false});
  const Cluster cluster{.gpus_per_node = 8, .network = 10};
  StepTime time = step_time(work, {mesh, cluster, simple_card()});
  CHECK(time.of(Family::kTensorExchange) == Approx(5 * 2));
  CHECK(time.of(Family::kShardExchange) == Approx(2 + 0.1 * 2));  // two of four, and a share of the others
  CHECK(time.total() == Approx(10 + 10 + 2.2));
  // A step waits for collectives that last longer than it computes, for each group in proportion.
  work.collectives[1] = {MeshDim::kTp, 30, 800, true};
  time = step_time(work, {mesh, cluster, simple_card()});
  CHECK(time.of(Family::kTensorExchange) + time.of(Family::kShardExchange) == Approx(62 - 10 + 2));
  CHECK(time.of(Family::kTensorExchange) == Approx(60 * 52. / 62));
}

TEST_CASE("Rows of a slice travel under the products of another") {
  const Mesh mesh({.dp_shard = 8, .ep = 8}, 8);
  StepWork work;  // experts take 12 s, 4 of them forward; a way of either pass takes 6 s
  work.kernels.push_back({.family = Family::kExpertProducts, .times = 12, .bytes = 3e12});
  work.dispatch = {.sent = {{MeshDim::kEp, 4 * 6 * 400.}},
                   .forward_passes = 1,
                   .backward_passes = 1,
                   .forward_share = 1. / 3,
                   .backward_share = 2. / 3};
  const Cluster cluster{.gpus_per_node = 8, .network = 10};
  const auto waits = [&](int64_t slices) {
    work.dispatch.slices = slices;
    return step_time(work, {mesh, cluster, simple_card()}).of(Family::kDispatch);
  };
  CHECK(waits(1) == Approx(24));
  // Forward takes 12 s, in which the links are always busy, backward 3 + 8 + 3 s, in which the experts are
  // busy from the first slice there to the last one back. What is hidden takes a share of the experts' time.
  CHECK(waits(2) == Approx((12 - 4) + (14 - 8) + 0.1 * (24 - 14)));
  CHECK(waits(4) < waits(2));
  work.dispatch.sent = {{MeshDim::kEpNodes, 4 * 6 * 10.}, {MeshDim::kEpInNode, 4 * 1 * 400.}};
  work.dispatch.forward_share = work.dispatch.backward_share = 0;
  const Mesh nodes({.dp_shard = 16, .ep = 16, .ep_nodes = 2}, 16);
  // Nothing but the 2 s inside a node, of which each slice has half, hides the 6 s between nodes.
  work.dispatch.slices = 2;
  const double between = step_time(work, {nodes, cluster, simple_card()}).of(Family::kDispatch);
  CHECK(between == Approx(2 * (2 + 3 + 2 * (3 - 1) + 3) + 0.1 * 2 * 2));
}

TEST_CASE("Experts without an exchange gather rows again, and keep none") {
  using config::RecomputeMode;
  const models::ModelArgs args = models::model_args("qwen3", "30B-A3B");
  const models::ModelDescription model = models::describe_model(args);
  // How often a block gathers rows, and runs the products of a stack forward.
  struct Runs {
    double gathers = 0, products = 0;
    bool operator==(const Runs&) const = default;
  };
  const auto runs = [&](RecomputeMode mode, int64_t ranks) {
    config::JobConfig config = resolved("[model]\nname = \"qwen3\"\nflavor = \"30B-A3B\"").config;
    config.parallelism.expert_parallel_degree = ranks;
    const Mesh mesh({.dp_shard = 16, .ep = static_cast<int>(ranks)}, 16);
    const BlockShape block(model.kinds[0], args, config, mesh);
    CHECK(block.keeps(mode, BlockShape::kExpertRows) == (ranks > 1 && mode != RecomputeMode::kFull));
    CHECK(block.bytes[BlockShape::kReturnedRows] == (ranks > 1 ? block.bytes[BlockShape::kExpertRows] : 0));
    StepWork work;
    add_block_work(block, mode, 1, 1, work);
    Runs found;
    for (const Kernels& kernels : work.kernels) {
      if (kernels.family == Family::kRouting &&
          kernels.bytes == (1 + block.chosen) * block.own * block.dim * block.element &&
          kernels.launches == 1)
        found.gathers += kernels.times;
      if (kernels.family == Family::kExpertProducts) found.products += kernels.times * kernels.flops;
    }
    // Sums of rows move as many bytes as gathers: one forward, one backward.
    found.gathers -= 2;
    const double stack = 2 * block.own * block.chosen * block.dim * block.expert_hidden;
    found.products = found.products / stack - 6;  // without dgrad and wgrad of w1, w2 and w3
    return found;
  };
  CHECK(runs(RecomputeMode::kNone, 1) == Runs{3, 3});
  CHECK(runs(RecomputeMode::kElementwise, 1) == Runs{3, 3});
  CHECK(runs(RecomputeMode::kSelective, 1) == Runs{4, 5});  // w1 and w3 again, not w2
  CHECK(runs(RecomputeMode::kFull, 1) == Runs{4, 5});
  CHECK(runs(RecomputeMode::kSelective, 4) == Runs{3, 5});  // what was received is kept
  CHECK(runs(RecomputeMode::kFull, 4) == Runs{4, 6});
}

TEST_CASE("Gathers and reductions move the padding of shards") {
  const models::ModelArgs args = models::model_args("llama3", "8B");
  const models::ModelDescription model = models::describe_model(args);
  const auto gathered = [&](int shards, int replicas) {
    const Mesh mesh({.dp_replicate = replicas, .dp_shard = shards}, shards * replicas);
    const StepWork work =
        step_work(resolved("").config, args, model, mesh,
                  {.stages = {{.first_block = 0, .end_block = 32, .embedding = true, .head = true}}});
    double bytes = 0;
    for (const Collectives& collectives : work.collectives)
      if (collectives.group == MeshDim::kFsdp) bytes += collectives.times * collectives.sent;
    return bytes;
  };
  CHECK(gathered(16384, 1) / gathered(1024, 16) == Approx(2.67).epsilon(0.03));
  CHECK(gathered(1024, 16) == Approx(gathered(64, 256)).epsilon(0.02));
}

TEST_CASE("Shards hold whole rows, or parts of an expert where there are more ranks than experts") {
  const models::ParameterShape rows{.name = "w", .dims = {1024, 4096}, .split = 0};
  CHECK(sharded_rows(rows, Mesh({.dp_shard = 16, .tp = 2}, 32)).padded == 512 * 4096);
  CHECK(sharded_rows(rows, Mesh({.dp_shard = 1024, .tp = 2}, 2048)).padded == 1024 * 4096);
  CHECK(sharded_rows(rows, Mesh({.dp_shard = 3}, 3)).padded == 342 * 3 * 4096);
  const models::ParameterShape experts{
      .name = "experts", .dims = {8, 6, 10}, .split = 1, .domain = Domain::kExpert};
  const ShardedRows divided = sharded_rows(experts, Mesh({.dp_shard = 16, .ep = 4}, 16));
  CHECK(divided.numel == 2 * 6 * 10);
  CHECK(divided.padded == 2 * 6 * 10);  // 4 ranks share 2 experts, each in 2 parts
  CHECK(sharded_rows(experts, Mesh({.dp_shard = 16}, 16)).padded == 16 * 6 * 10);
}

}  // namespace hyperion::trainer
