#include "trainer/plan/muon_work.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"
#include "tests/unit/trainer/plan/job_sizes.h"
#include "trainer/optim/newton_schulz.h"
#include "trainer/plan/step_time.h"

namespace hyperion::trainer {
namespace {

using parallel::Mesh, parallel::MeshDim;

constexpr const char* kMuonToml = "[optimizer]\nname = \"Muon\"\n";

config::JobConfig muon_config(const std::string& more = "") {
  return resolved(kMuonToml + more).config;
}

std::vector<ModelStage> all_blocks(const models::ModelDescription& model) {
  return {{.first_block = 0, .end_block = model.blocks(), .embedding = true, .head = true}};
}

double flops_of_model(const models::ModelDescription& model) {
  double flops = 0;
  models::for_each_named_parameter(model, [&](const std::string& fqn, const models::ParameterShape& shape) {
    if (!fqn.starts_with("layers.") || shape.dims.size() < 2) return;
    const bool stack = shape.dims.size() == 3;
    const int64_t count = stack ? shape.dims[0] : shape.matrices,
                  rows = stack ? shape.dims[1] : shape.dims[0] / shape.matrices;
    flops += static_cast<double>(count) * optim::newton_schulz_flops(rows, shape.dims.back(), 5);
  });
  return flops;
}

}  // namespace

TEST_CASE("the ranks' FLOPs of Muon are the model's, and what one sends another receives") {
  const models::ModelDescription model = models::describe_model(models::model_args("llama3", "8B"));
  const config::JobConfig config = muon_config();
  const Mesh mesh({.dp_shard = 4, .tp = 2}, 8);
  double flops = 0, sent = 0, received = 0, fullest = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto work = muon_work(config, model, mesh, all_blocks(model), rank);
    REQUIRE(work);
    CHECK(work->mean_flops == Approx(flops_of_model(model) / 8));
    REQUIRE(work->exchanges.size() == 2);
    flops += work->flops;
    fullest = std::max(fullest, work->flops);
    for (const MuonExchange& exchange : work->exchanges) {
      sent += exchange.sent;
      received += exchange.received;
    }
  }
  CHECK(flops == Approx(flops_of_model(model)));
  CHECK(sent == received);
  const auto most = muon_work(config, model, mesh, all_blocks(model));
  CHECK(most->flops == fullest);
  CHECK(most->load() < 1.1);
  // Three of four shards of an element are with other ranks, in bf16, there and back.
  const double of_rank = (models::parameter_count(model) - 2 * model.table.numel()) / 8;
  CHECK(most->exchanges[0].step() == Approx(2 * 2 * 0.75 * of_rank).epsilon(0.03));
}

TEST_CASE("experts of expert parallel ranks are exchanged among the ranks that share them") {
  const models::ModelDescription model = models::describe_model(models::model_args("qwen3", "30B-A3B"));
  const auto work = muon_work(muon_config(), model, Mesh({.dp_shard = 16, .ep = 8}, 16), all_blocks(model));
  REQUIRE(work);
  CHECK(work->mean_flops == Approx(flops_of_model(model) / 16));
  REQUIRE(work->exchanges.size() == 2);
  CHECK(work->exchanges[1].group == MeshDim::kEfsdp);
  const auto alone = muon_work(muon_config(), model, Mesh({.dp_shard = 8, .ep = 8}, 8), all_blocks(model));
  CHECK(alone->exchanges.size() == 1);  // each rank has its experts to itself
}

TEST_CASE("without Muon, or without matrices of its own, there is no work") {
  const models::ModelDescription model = models::describe_model(models::model_args("llama3", "debugmodel"));
  const Mesh mesh({}, 1);
  CHECK_FALSE(muon_work(resolved("").config, model, mesh, all_blocks(model)));
  CHECK_FALSE(muon_work(muon_config("[[optimizer.groups]]\nmatch = [\"*\"]\noptimizer = \"AdamW\"\n"), model,
                        mesh, all_blocks(model)));
  CHECK(muon_work(muon_config(), model, mesh, all_blocks(model))->exchanges.empty());
}

TEST_CASE("the estimates have Muon's buffers, products and exchange") {
  const models::ModelArgs args = models::model_args("llama3", "8B");
  const models::ModelDescription model = models::describe_model(args);
  const config::JobConfig muon = muon_config(), adamw = resolved("").config;
  const Mesh mesh({.dp_shard = 8}, 8);
  const auto work = muon_work(muon, model, mesh, all_blocks(model));
  const JobSize size = size_of(muon, model, 8), without = size_of(adamw, model, 8);
  CHECK(size.exchanges == work->buffers);
  CHECK(without.exchanges == 0);
  CHECK(states_on_gpu(muon, size) - states_on_gpu(adamw, without) ==
        Approx(work->buffers + size.optimizer - without.optimizer));

  const RankStages stages{.stages = all_blocks(model)};
  const StepWork step = step_work(muon, args, model, mesh, stages),
                 other = step_work(adamw, args, model, mesh, stages);
  double flops = 0;
  for (const Kernels& kernels : step.kernels)
    if (kernels.family == Family::kMuonProducts) flops += kernels.times * kernels.flops;
  CHECK(flops == Approx(work->flops));
  CHECK(std::ranges::none_of(other.kernels,
                             [](const Kernels& kernels) { return kernels.family == Family::kMuonProducts; }));
  REQUIRE(step.muon.has_value());
  REQUIRE(step.muon->exchanges.size() == 1);
  CHECK(step.sent().at(MeshDim::kFsdp) == Approx(other.sent().at(MeshDim::kFsdp) + work->step_bytes()));
  Card card{.memory = 3e12, .launch = 1e-6, .link = 4e11};
  card.flops.fill(5e14);
  const StepTime time = step_time(step, {mesh, {}, card});
  CHECK(time.of(Family::kMuonProducts) >= work->flops / card.rate(Rate::kBf16));
  CHECK(time.of(Family::kMuonExchange) > 0);
  CHECK(time.total() > step_time(other, {mesh, {}, card}).total());
}

}  // namespace hyperion::trainer
