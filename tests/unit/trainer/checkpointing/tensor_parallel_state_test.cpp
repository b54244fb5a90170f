// The state of a job whose parameters a tensor parallel group divides, as its checkpoints hold it: weights,
// moments and averages as parallel::ShardedParameter cuts them, on any mesh.
#include <algorithm>
#include <iterator>
#include <map>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/export_safetensors.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "checkpoint/tools/tools.h"
#include "models/init.h"
#include "parallel/placement.h"
#include "tests/support/model_parameters.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/optim/adam.h"

namespace hyperion::checkpointing {

namespace fs = std::filesystem;
using parallel::Mesh, parallel::MeshConfig, parallel::MeshDim;

namespace {

const models::ModelArgs kArgs = [] {
  models::ModelArgs args;
  args.dim = 10;
  args.n_layers = 1;
  args.attention.n_heads = 4;
  args.attention.n_kv_heads = 4;
  args.attention.head_dim = 4;
  args.vocab_size = 17;
  args.dense.hidden_dim = 25;
  return args;
}();

// A tiny model with odd extents, as `rank` of `mesh` holds it. `narrow`: so few rows and columns that parts
// are empty.
std::vector<parallel::ShardedParameterPtr> parameters_of(const Mesh& mesh, int rank, bool narrow) {
  const int64_t vocab = narrow ? 5 : 17, hidden = narrow ? 5 : 25;
  const std::string block = "layers.0.";
  std::vector<ParameterPtr> all;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, std::optional<int> split) {
    all.push_back(make_parameter(name, std::move(shape), Init::normal(1.0), split));
  };
  add("tok_embeddings.weight", {vocab, 10}, 0);
  add(block + "attention.wq.weight", {16, 10}, 0);
  add(block + "attention.wk.weight", {16, 10}, 0);
  all.back()->trainable = false;  // a frozen one has a weight and an average
  add(block + "attention.wo.weight", {10, 16}, 1);
  add(block + "feed_forward.w1.weight", {hidden, 10}, 0);
  add(block + "feed_forward.w2.weight", {10, hidden}, 1);
  add(block + "ffn_norm.weight", {10}, {});
  add("output.weight", {vocab, 10}, 0);
  std::vector<parallel::ShardedParameterPtr> sharded;
  for (const ParameterPtr& parameter : all) {
    parameter->shard(mesh.degree(MeshDim::kTp), mesh.coordinate(rank, MeshDim::kTp));
    sharded.push_back(std::make_shared<parallel::ShardedParameter>(
        parameter, parallel::placement_of(*parameter, 0, mesh, rank), parallel::ShardingOptions{}));
  }
  return sharded;
}

// Weights, moments and averages of a rank.
struct RankState {
  RankState(const MeshConfig& config, int world, int rank, bool narrow)
      : mesh(config, world),
        parameters(parameters_of(mesh, rank, narrow)),
        adam(parameters, options.optimizer),
        ema(parameters, options.ema),
        model(all_held(parameters)),
        optimizer(adam, all_held(parameters), parallel::replicated_placement(mesh, rank), plan, state),
        averages(ema, all_held(parameters)) {}

  std::vector<checkpoint::StateComponent*> components() { return {&model, &optimizer, &averages}; }
  std::vector<checkpoint::TensorState> tensors() {
    std::vector<checkpoint::TensorState> all;
    for (checkpoint::StateComponent* component : components())
      for (checkpoint::TensorState& tensor : component->tensors()) all.push_back(std::move(tensor));
    return all;
  }

  // Calls visit(parameter, tensor, kind) for every tensor that is cut.
  template <typename Visit>
  void each_tensor(const Visit& visit) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      uint64_t kind = 0;
      visit(*parameters[i], parameters[i]->master(), kind++);
      visit(*parameters[i], ema.tensors()[i], kind++);
      for (const at::Tensor& moment : adam.states(i)) visit(*parameters[i], moment, kind++);
    }
  }
  // Element i of each tensor follows from its name, its kind and i.
  void fill() {
    each_tensor([](const parallel::ShardedParameter& parameter, at::Tensor tensor, uint64_t kind) {
      models::initialize(parameter.parameter(), kind, parameter.box(), tensor);
    });
    at::Tensor step = adam.step_count();
    step.fill_(12);
  }
  bool is_filled() {
    bool equal = adam.step_count().item<float>() == 12;
    each_tensor([&](const parallel::ShardedParameter& parameter, const at::Tensor& tensor, uint64_t kind) {
      at::Tensor expected = at::empty_like(tensor);
      models::initialize(parameter.parameter(), kind, parameter.box(), expected);
      equal &= tensor.equal(expected);
    });
    return equal;
  }

  config::JobConfig options;
  ResumePlan plan;
  TrainState state;
  Mesh mesh;
  std::vector<parallel::ShardedParameterPtr> parameters;
  optim::Adam adam;
  optim::Ema ema;
  ModelState model;
  OptimizerState optimizer;
  EmaState averages;
};

struct NamedMesh {
  const char* name;
  MeshConfig config;
  int world;
};
const std::vector<NamedMesh> kMeshes = {
    {"1 rank", {}, 1},
    {"FSDP 3", {}, 3},
    {"TP 2", {.tp = 2}, 2},
    {"TP 4", {.tp = 4}, 4},
    {"FSDP 2 x TP 2", {.dp_shard = 2, .tp = 2}, 4},
    {"HSDP 2 x TP 2 without shards", {.dp_replicate = 2, .dp_shard = 1, .tp = 2}, 4},
    {"HSDP 2 x 2 x TP 2", {.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8}};

fs::path save_on(const NamedMesh& mesh, const fs::path& folder, bool narrow, checkpoint::Writers writers) {
  test::ThreadRanks::run(mesh.world, [&](Coordinator& ranks) {
    RankState state(mesh.config, mesh.world, ranks.rank(), narrow);
    state.fill();
    checkpoint::MemoryMover mover;
    checkpoint::Saver saver({.folder = folder,
                             .writers = writers,
                             .held_part =
                                 [&](const auto& kind, int rank) {
                                   return checkpoint::held_part(
                                       parallel::placement_of(kind.cuts, kind.pp_rank, state.mesh, rank));
                                 }},
                            state.components(), ranks, mover);
    saver.save(1);
  });
  return folder / "step-1";
}

}  // namespace

TEST_CASE(
    "one state has one digest on every mesh with tensor parallelism, and each mesh loads it from each") {
  const test::TemporaryFolder folder;
  for (const bool narrow : {false, true}) {
    std::optional<uint64_t> digest;
    for (const NamedMesh& from : kMeshes) {
      for (const checkpoint::Writers writers :
           {checkpoint::Writers::kAll, checkpoint::Writers::kOneReplica}) {
        CAPTURE(from.name, narrow);
        const fs::path path = save_on(
            from, folder.path() / fmt::format("{} {} {}", from.name, narrow, static_cast<int>(writers)),
            narrow, writers);
        const uint64_t total = checkpoint::digest_of(checkpoint::open_checkpoint(path)).total();
        CHECK(digest.value_or(total) == total);
        digest = total;
        const checkpoint::OpenCheckpoint checkpoint = checkpoint::open_checkpoint(path);
        checkpoint::StoredNames names;
        for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
        for (const NamedMesh& to : kMeshes) {
          CAPTURE(to.name);
          for (int rank = 0; rank < to.world; ++rank) {
            RankState loaded(to.config, to.world, rank, narrow);
            checkpoint::MemoryMover mover;
            checkpoint::load_tensors(
                checkpoint, checkpoint::plan_load(checkpoint, loaded.tensors(), names, {}), mover, {});
            REQUIRE(loaded.is_filled());
          }
        }
      }
    }
  }
}

TEST_CASE("weights for Hugging Face are the same from every mesh, and each mesh starts from them") {
  const test::TemporaryFolder folder;
  std::optional<std::string> one;
  const auto model_of = [](RankState& state) { return state.model.tensors(); };
  for (const NamedMesh& mesh : kMeshes) {
    CAPTURE(mesh.name);
    const fs::path to = folder.path() / mesh.name;
    test::ThreadRanks::run(mesh.world, [&](Coordinator& ranks) {
      RankState state(mesh.config, mesh.world, ranks.rank(), false);
      state.fill();
      const std::vector<checkpoint::TensorState> tensors = model_of(state);
      std::vector<checkpoint::ExportedTensor> exported;
      for (const checkpoint::TensorState& tensor : tensors) {
        std::ranges::move(hugging_face_tensors(kArgs, tensor, checkpoint::Dtype::kFloat32),
                          std::back_inserter(exported));
      }
      checkpoint::MemoryMover mover;
      checkpoint::export_safetensors(1, "export-1", exported, {}, {}, checkpoint::CheckpointFolder(to), ranks,
                                     mover);
    });
    const std::string bytes = read_file(to / "step-1/model.safetensors");
    CHECK(one.value_or(bytes) == bytes);
    one = bytes;
  }
  const checkpoint::OpenCheckpoint stored = checkpoint::open_checkpoint(folder.path() / "1 rank/step-1");
  std::map<std::string, std::string> keys;
  for (const auto& [key, record] : stored.index.tensors) keys.emplace(key, key);
  const checkpoint::StoredNames names = hugging_face_names(kArgs, keys, stored);
  for (const NamedMesh& mesh : kMeshes) {
    for (int rank = 0; rank < mesh.world; ++rank) {
      RankState expected(mesh.config, mesh.world, rank, false), loaded(mesh.config, mesh.world, rank, false);
      expected.fill();
      checkpoint::MemoryMover mover;
      checkpoint::load_tensors(stored, checkpoint::plan_load(stored, model_of(loaded), names, {}), mover, {});
      for (size_t i = 0; i < loaded.parameters.size(); ++i)
        CHECK(loaded.parameters[i]->master().equal(expected.parameters[i]->master()));
    }
  }
}

}  // namespace hyperion::checkpointing
