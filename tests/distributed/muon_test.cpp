// Muon makes one rank's update on every mesh, on a CPU: bit for bit from equal gradients, and losses to
// rounding.
#include "trainer/optim/muon.h"

#include <map>
#include <set>

#include <catch2/catch.hpp>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/config/validate.h"
#include "trainer/plan/muon_work.h"
#include "trainer/preflight.h"

namespace hyperion::parallel {
namespace {

TinyJob muon_job(const char* model, MeshConfig mesh = {}, int64_t accumulation = 1) {
  return {.model = model,
          .mesh = mesh,
          .accumulation = accumulation,
          .heads = 4,
          .kv_heads = 2,
          .experts = 4,
          .muon = true};
}

using ElementValues = std::map<std::pair<int64_t, int64_t>, float>;

// The weights and states after updates by the same gradients, of all ranks together; an element of which two
// ranks have different values is one of parameter -1.
ElementValues updated_state(int ranks, const TinyJob& job, int updates = 2) {
  const auto all = run_ranks(ranks, [=](const Environment& environment) {
    return TinyTraining(job, environment).state_after_updates(updates);
  });
  ElementValues state;
  for (const auto& of_rank : all)
    for (const auto& [parameter, element, value] : of_rank)
      if (state.try_emplace({parameter, element}, value).first->second != value) state[{-1, element}] = value;
  return state;
}

// The parameters with an element that differs, or that only one side has.
std::set<int64_t> different_parameters(const ElementValues& a, const ElementValues& b) {
  std::set<int64_t> different;
  for (const auto* side : {&a, &b})
    for (const auto& [key, value] : *side) {
      const auto& other = side == &a ? b : a;
      const auto found = other.find(key);
      if (found == other.end() || found->second != value) different.insert(key.first);
    }
  return different;
}

struct MuonLayout {
  int ranks;
  MeshConfig mesh;
  int64_t accumulation = 1;
};

void check_muon(const char* model, const std::vector<MuonLayout>& layouts) {
  for (const checkpoint::Dtype dtype : {checkpoint::Dtype::kFloat32, checkpoint::Dtype::kBFloat16}) {
    TinyJob job = muon_job(model);
    job.ns_dtype = dtype;
    const ElementValues one = updated_state(1, job);
    const auto losses =
        run_ranks(1, [=](const Environment& environment) { return train_tiny(job, environment, 20); });
    for (const auto& [ranks, mesh, accumulation] : layouts) {
      CAPTURE(model, ranks, mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp, mesh.ep, mesh.etp);
      TinyJob other = muon_job(model, mesh, accumulation);
      other.ns_dtype = dtype;
      CHECK(different_parameters(updated_state(ranks, other), one) == std::set<int64_t>{});
      if (dtype == checkpoint::Dtype::kBFloat16) continue;  // rounds what a sum in another order changes
      const auto found = run_ranks(
          ranks, [=](const Environment& environment) { return train_tiny(other, environment, 20); });
      CHECK(largest_difference(found[0], losses[0]) < 1e-6);
    }
  }
}

// Returns in pairs what a rank is planned to do in an update and what it does: bytes that it sends in all
// groups and in fsdp, bytes of buffers; and of dense models its matrices and their FLOPs.
std::vector<double> planned_and_done(const TinyJob& job, const Environment& environment) {
  TinyTraining training(job, environment);
  const config::JobConfig& config = training.config();
  const Mesh mesh(job.mesh, environment.world_size);
  const models::ModelArgs args = trainer::job_model(config);
  const models::ModelDescription description = models::describe_model(args);
  std::vector<trainer::ModelStage> stages = {{.end_block = description.blocks()}};
  if (job.mesh.pp > 1) {
    const int64_t batches = config::microbatches_of(config.training, mesh.degree(MeshDim::kBatch));
    const auto pp_rank = static_cast<size_t>(mesh.coordinate(environment.rank, MeshDim::kPp));
    stages = trainer::plan_pipeline(config, args, batches)->shares.at(pp_rank);
  }
  const int place = environment.rank % (environment.world_size / job.mesh.pp);
  const auto work = trainer::muon_work(config, description, mesh, stages, place);
  if (!work) return {};
  double planned_in_fsdp = 0, in_fsdp = 0, sent = 0, buffers = 0, matrices = 0, flops = 0;
  for (const trainer::MuonExchange& exchange : work->exchanges)
    if (exchange.group == MeshDim::kFsdp) planned_in_fsdp += exchange.step();
  training.ledger().reset();
  training.state_after_updates(1);
  for (const auto& [key, entry] : training.ledger().entries()) {
    if (key.second == "all_to_all") sent += static_cast<double>(entry.bytes);
    if (key.second == "all_to_all" && key.first.starts_with("fsdp/"))
      in_fsdp += static_cast<double>(entry.bytes);
  }
  const auto& muon = dynamic_cast<const optim::Muon&>(training.optimizer());
  for (const auto& exchange : muon.exchanges()) {
    buffers += static_cast<double>(exchange->buffer_bytes());
    for (const optim::Matrix& matrix : exchange->matrices())
      if (matrix.shard_owner == mesh.coordinate(place, MeshDim::kFsdp) &&
          (matrix.parts.size() == 1 || matrix.tensor_owner == mesh.coordinate(place, MeshDim::kTp))) {
        ++matrices;
        flops += optim::newton_schulz_flops(matrix.rows, matrix.columns, config.optimizer.muon.ns_steps);
      }
  }
  if (job.mesh.ep > 1)  // whose experts have owners in other groups
    return {work->step_bytes(), sent, planned_in_fsdp, in_fsdp, work->buffers, buffers};
  return {work->step_bytes(), sent,     planned_in_fsdp, in_fsdp, work->buffers, buffers,
          work->matrices,     matrices, work->flops,     flops};
}

}  // namespace

TEST_CASE("a rank exchanges and multiplies what the plan counts for it") {
  const auto check = [](const char* model, const std::vector<MuonLayout>& layouts) {
    for (const auto& [ranks, mesh, accumulation] : layouts) {
      TinyJob job = muon_job(model, mesh, accumulation);
      job.ns_dtype = checkpoint::Dtype::kBFloat16;
      const auto found = run_ranks(
          ranks, [=](const Environment& environment) { return planned_and_done(job, environment); });
      for (int rank = 0; rank < ranks; ++rank) {
        CAPTURE(model, ranks, rank, mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp, mesh.ep,
                mesh.etp);
        const std::vector<double>& numbers = found[static_cast<size_t>(rank)];
        REQUIRE(numbers.size() >= 6);
        for (size_t i = 0; i < numbers.size(); i += 2)
          CHECK(numbers[i] == Approx(numbers[i + 1]).epsilon(1e-12));
        if (mesh.dp_shard * mesh.tp > 1) CHECK(numbers[0] > 0);
      }
    }
  };
  check("llama3", {{1, {}},
                   {3, {.dp_shard = 3}},
                   {4, {.dp_replicate = 2, .dp_shard = 2}},
                   {4, {.dp_shard = 2, .tp = 2}},
                   {4, {.pp = 2, .dp_shard = 2}, 3},
                   {2, {.dp_shard = 1, .cp = 2}}});
  check("qwen3_moe", {{6, {.dp_shard = 6}}});
  check("deepseek_v3", {{2, {.dp_shard = 2, .ep = 2}},
                        {4, {.dp_shard = 4, .ep = 2}, 3},
                        {4, {.dp_shard = 2, .tp = 2, .ep = 2}, 3},
                        {4, {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 3}});
}

TEST_CASE("Muon updates a dense model on every mesh as on one rank") {
  check_muon("llama3", {{2, {.dp_shard = 2}},
                        {3, {.dp_shard = 3}},
                        {4, {.dp_replicate = 2, .dp_shard = 2}},
                        {2, {.dp_shard = 1, .tp = 2}},
                        {4, {.dp_shard = 2, .tp = 2}},
                        {2, {.pp = 2, .dp_shard = 1}, 6},
                        {2, {.dp_shard = 1, .cp = 2}}});
}

TEST_CASE("states in bf16 are the same bits on every mesh from equal gradients") {
  const auto check = [](const char* model, bool muon, const std::vector<MuonLayout>& layouts) {
    TinyJob job = muon_job(model);
    job.muon = muon;
    job.bf16_states = true;
    const ElementValues one = updated_state(1, job, /*updates=*/3);
    for (const auto& [ranks, mesh, accumulation] : layouts) {
      CAPTURE(model, muon, ranks, mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.tp, mesh.ep, mesh.etp);
      job.mesh = mesh;
      job.accumulation = accumulation;
      CHECK(different_parameters(updated_state(ranks, job, 3), one) == std::set<int64_t>{});
    }
  };
  check("llama3", false,
        {{3, {.dp_shard = 3}},
         {4, {.dp_replicate = 2, .dp_shard = 2}},
         {2, {.dp_shard = 1, .tp = 2}},
         {2, {.pp = 2, .dp_shard = 1}, 6}});
  check("deepseek_v3", false,
        {{2, {.dp_shard = 2, .ep = 2}}, {4, {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 3}});
  check("llama3", true, {{4, {.dp_shard = 2, .tp = 2}}});
}

TEST_CASE("Muon updates experts and heads of latent attention on every mesh as on one rank") {
  check_muon("deepseek_v3", {{2, {.dp_shard = 2}},
                             {2, {.dp_shard = 1, .tp = 2}},
                             {2, {.dp_shard = 2, .ep = 2}},
                             {4, {.dp_shard = 2, .tp = 2, .ep = 2}, 3},
                             {4, {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 3}});
  check_muon("qwen3_moe", {{6, {.dp_shard = 6}}});  // more ranks than experts
}

}  // namespace hyperion::parallel
