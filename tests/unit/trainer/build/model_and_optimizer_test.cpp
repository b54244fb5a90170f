// What a job trains and saves, made without other processes: as rank r of n that exchange nothing.
#include "trainer/build/model_and_optimizer.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include "base/files.h"
#include "tests/support/documents.h"
#include "tests/support/momentum.h"
#include "tests/support/temporary_folder.h"
#include "trainer/config/load.h"
#include "trainer/runtime/runtime.h"
#include "trainer/training_state.h"

namespace hyperion::trainer {

using at::Tensor;
using Catch::Contains;

namespace {

config::JobConfig config(const std::vector<config::Override>& overrides = {}) {
  return config::parse_config("[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n[parallelism]\n",
                              "job.toml", overrides)
      .config;
}

struct Rank {
  Rank(int rank, int world, const config::JobConfig& config, bool without_memory = false)
      : mesh(mesh_config(config), world),
        groups(mesh, {.rank = rank, .world_size = world}, {.backend = parallel::CommBackend::kFake}),
        args(config::model_args(config.model)),
        model(make_model_and_optimizer(args, config,
                                       {.mesh = mesh,
                                        .rank = rank,
                                        .groups = groups,
                                        .device = at::kCPU,
                                        .without_memory = without_memory})) {}
  parallel::Mesh mesh;
  parallel::ProcessGroups groups;
  models::ModelArgs args;
  ModelAndOptimizer model;
};

}  // namespace

TEST_CASE("initial weights depend on the seed alone and not on the number of ranks") {
  const config::JobConfig job = config();
  Rank whole(0, 1, job), first(0, 3, job), second(1, 3, job), third(2, 3, job), other(0, 1, job);
  for (Rank* rank : {&whole, &first, &second, &third}) initialise_weights(rank->model, 17);
  initialise_weights(other.model, 18);
  for (size_t i = 0; i < whole.model.parameters.size(); ++i) {
    const Tensor expected = whole.model.parameters[i]->master();
    CAPTURE(whole.model.parameters[i]->parameter().fqn);
    CHECK(at::equal(expected,
                    at::cat({first.model.parameters[i]->master(), second.model.parameters[i]->master(),
                             third.model.parameters[i]->master()})));
    CHECK(at::equal(whole.model.parameters[i]->compute_shard(), expected.to(at::kBFloat16)));
    if (expected.dim() > 1) CHECK_FALSE(at::equal(expected, other.model.parameters[i]->master()));
  }
}

TEST_CASE("initial weights of tensor parallel ranks are their boxes of the whole ones") {
  const config::JobConfig job = config();
  Rank whole(0, 1, job);
  initialise_weights(whole.model, 17);
  for (int index = 0; index < 4; ++index) {
    const Rank rank(index, 4, config({{"parallelism.tensor_parallel_degree", "2"}}));  // and two shards
    initialise_weights(rank.model, 17);
    for (size_t i = 0; i < whole.model.parameters.size(); ++i) {
      Tensor expected = whole.model.parameters[i]->master();
      const Box box = rank.model.parameters[i]->box();
      for (size_t d = 0; d < box.shape.size(); ++d)
        expected = expected.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
      CAPTURE(index, whole.model.parameters[i]->parameter().fqn);
      CHECK(rank.model.parameters[i]->master().numel() <= whole.model.parameters[i]->master().numel() / 2);
      CHECK(at::equal(rank.model.parameters[i]->master(), expected));
    }
  }
}

TEST_CASE("a model without memory has the shapes and states of a real one") {
  const config::JobConfig job = config();
  const Rank real(1, 2, job), shapes(1, 2, job, /*without_memory=*/true);
  REQUIRE(real.model.parameters.size() == shapes.model.parameters.size());
  for (size_t i = 0; i < real.model.parameters.size(); ++i) {
    CHECK(shapes.model.parameters[i]->master().is_meta());
    CHECK(shapes.model.optimizer->states(i)[0].is_meta());
    CHECK(shapes.model.parameters[i]->master().sizes() == real.model.parameters[i]->master().sizes());
  }
}

TEST_CASE("the state has each part once and model, optimizer and their place in the table") {
  config::JobConfig job = config({{"ema.enable", "true"}});
  Rank rank(0, 2, job, /*without_memory=*/true);
  job.ema.device = config::EmaDevice::kSame;
  rank.model.ema = std::make_unique<optim::Ema>(rank.model.parameters, job.ema);
  checkpointing::TrainState state;
  const test::TemporaryFolder folder;
  const std::string text = folder.write("text.jsonl", "{\"text\": \"one two\"}\n");
  data::LoaderOptions options;
  options.sources = {{.path = text}};
  options.encode = test::encode_bytes;
  options.seq_len = 4;
  options.rows = 1;
  data::DataLoader loader(options);
  checkpointing::ResumePlan plan;
  plan.config = job;
  const StateComponents components =
      state_components({rank.model, rank.mesh, 0, at::kCPU, state, loader, plan, job});
  std::vector<std::string> names;
  for (const auto& component : components) names.push_back(component->name());
  CHECK(names == std::vector<std::string>{"model", "optimizer", "ema", "train_state", "lr_scheduler",
                                          "dataloader", "rng"});
  const std::string table = state_table(components);
  CHECK_THAT(table,
             Contains("layers.0.attention.wq.weight") && Contains("2 shards x 1 replicas, dim 0 in 2"));
  CHECK_THAT(table, Contains("optimizer.state.norm.weight.exp_avg"));
  CHECK_THAT(table, Contains("lr_scheduler.last_epoch"));
}

TEST_CASE("what replicas compare of an optimizer is what it says that it keeps") {
  const Rank rank(0, 2,
                  config({{"parallelism.data_parallel_replicate_degree", "2"},
                          {"parallelism.data_parallel_shard_degree", "1"}}));
  const test::Momentum momentum(rank.model.parameters);
  const auto compared = [&](const optim::Optimizer& optimizer) {
    std::set<std::string> names;
    for (const parallel::ReplicatedTensor& tensor :
         replicated_state(rank.model.parameters, optimizer, {}, rank.groups.get(parallel::MeshDim::kFsdp),
                          rank.groups.get(parallel::MeshDim::kDpReplicate), nullptr, nullptr))
      if (tensor.name.starts_with("layers.0.attention.wq.") || tensor.name.starts_with("norm."))
        names.insert(tensor.name);
    return names;
  };
  const std::string matrix = "layers.0.attention.wq.weight", vector = "norm.weight";
  CHECK(compared(*rank.model.optimizer) ==
        std::set<std::string>{matrix, matrix + " (exp_avg)", matrix + " (exp_avg_sq)", vector,
                              vector + " (exp_avg)", vector + " (exp_avg_sq)"});
  CHECK(compared(momentum) == std::set<std::string>{matrix, matrix + " (momentum_buffer)", vector});
}

TEST_CASE("gradients are written whole for a job of one rank") {
  Rank rank(0, 1, config());
  for (const parallel::ShardedParameterPtr& parameter : rank.model.parameters)
    Tensor(parameter->grad()).fill_(0.5);
  const test::TemporaryFolder folder;
  setenv("HYPERION_DUMP_GRADIENTS", (folder.path() / "gradients").c_str(), 1);
  const auto path = gradient_dump_folder();
  unsetenv("HYPERION_DUMP_GRADIENTS");
  CHECK_FALSE(gradient_dump_folder());
  REQUIRE(path);
  dump_gradients(*path, 0, 1, rank.model.parameters);
  for (const parallel::ShardedParameterPtr& parameter : rank.model.parameters) {
    std::ifstream file(*path / (parameter->parameter().fqn + ".f32"), std::ios::binary);
    std::vector<float> values(static_cast<size_t>(parameter->master().numel()) + 1);
    file.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    CHECK(file.gcount() == parameter->master().numel() * 4);
    CHECK(std::all_of(values.begin(), values.end() - 1, [](float value) { return value == 0.5F; }));
  }
}

TEST_CASE("gradients of several ranks are written as boxes that a script joins to the whole ones") {
  const test::TemporaryFolder folder;
  const std::filesystem::path gradients = folder.path() / "gradients";
  const std::string join = fmt::format("python3 {}/scripts/join_gradients.py {} > {}/said 2>&1",
                                       HYPERION_SOURCE_DIR, gradients.string(), folder.path().string());
  const auto said = [&] { return read_file(folder.path() / "said"); };
  const config::JobConfig job = config({{"parallelism.tensor_parallel_degree", "2"}});
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int index = 0; index < 4; ++index) {
    ranks.push_back(std::make_unique<Rank>(index, 4, job));
    for (const parallel::ShardedParameterPtr& parameter : ranks.back()->model.parameters) {
      const Tensor numbers = at::arange(parameter->parameter().numel(), at::kFloat);
      Tensor own = numbers.view(parameter->parameter().shape);
      const Box box = parameter->box();
      for (size_t d = 0; d < box.shape.size(); ++d)
        own = own.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
      Tensor(parameter->grad()).copy_(own);
    }
    dump_gradients(gradients, index, 4, ranks.back()->model.parameters);
  }
  CHECK(std::system(join.c_str()) == 0);
  for (const parallel::ShardedParameterPtr& parameter : ranks[0]->model.parameters) {
    CAPTURE(parameter->parameter().fqn);
    const std::string bytes = read_file(gradients / (parameter->parameter().fqn + ".f32"));
    const Tensor expected = at::arange(parameter->parameter().numel(), at::kFloat);
    REQUIRE(bytes.size() == expected.nbytes());
    CHECK(std::memcmp(bytes.data(), expected.data_ptr(), bytes.size()) == 0);
  }

  std::filesystem::remove(gradients / "rank_3.gradients");
  CHECK(std::system(join.c_str()) != 0);
  CHECK_THAT(said(), Contains("rank_3.gradients is missing, of a job of 4 ranks"));
  dump_gradients(gradients, 3, 4, ranks[3]->model.parameters);

  // What tensor parallel ranks both have must be the same numbers.
  for (const parallel::ShardedParameterPtr& parameter : ranks[1]->model.parameters)
    if (parameter->parameter().fqn == "norm.weight") Tensor(parameter->grad()).fill_(0.5);
  dump_gradients(gradients, 1, 4, ranks[1]->model.parameters);
  CHECK(std::system(join.c_str()) != 0);
  CHECK_THAT(said(), Contains("norm.weight: rank 1 has another number for element"));
}

TEST_CASE("a part of a gradient that no rank has written is refused") {
  const test::TemporaryFolder folder;
  const config::JobConfig job = config({{"parallelism.tensor_parallel_degree", "2"}});
  for (int index = 0; index < 2; ++index) {
    Rank rank(index, 2, job);
    auto& parameters = rank.model.parameters;
    if (index == 1) parameters.erase(parameters.begin());  // the table's other half
    dump_gradients(folder.path(), index, 2, parameters);
  }
  const std::string join =
      fmt::format("python3 {}/scripts/join_gradients.py {} --out {}/out > {}/said 2>&1", HYPERION_SOURCE_DIR,
                  folder.path().string(), folder.path().string(), folder.path().string());
  CHECK(std::system(join.c_str()) != 0);
  CHECK_THAT(read_file(folder.path() / "said"),
             Contains("tok_embeddings.weight: no rank has element 262144 of 524288"));
}

TEST_CASE("gradients of two meshes are compared in the order in which a backward makes them") {
  const test::TemporaryFolder folder;
  const config::JobConfig job = config({{"model.args.dim", "32"},
                                        {"model.args.n_layers", "2"},
                                        {"model.args.n_heads", "2"},
                                        {"model.args.hidden_dim", "64"},
                                        {"model.args.vocab_size", "64"}});
  const auto dump = [&](const char* name, int ranks, const std::set<std::string>& twice = {}) {
    for (int index = 0; index < ranks; ++index) {
      const Rank rank(index, ranks, job);
      for (const parallel::ShardedParameterPtr& parameter : rank.model.parameters)
        Tensor(parameter->grad()).fill_(twice.contains(parameter->parameter().fqn) ? 2 : 1);
      dump_gradients(folder.path() / name, index, ranks, rank.model.parameters);
    }
  };
  const auto said_of = [&](const char* ours, const char* theirs, bool equal) {
    const std::string command =
        fmt::format("cd {} && python3 {}/scripts/join_gradients.py {} --compare {} > said 2>&1",
                    folder.path().string(), HYPERION_SOURCE_DIR, ours, theirs);
    CHECK((std::system(command.c_str()) == 0) == equal);
    return read_file(folder.path() / "said");
  };
  dump("one", 1);
  dump("two", 2);
  dump("other", 2,
       {"tok_embeddings.weight", "layers.0.attention.wq.weight", "layers.0.feed_forward.w2.weight",
        "layers.1.ffn_norm.weight"});
  CHECK(said_of("two", "one", true) == "21 gradients are equal to 1e-05\n");
  CHECK(said_of("one", "other", false) ==
        "layers.1.ffn_norm.weight: 0.5\nlayers.0.feed_forward.w2.weight: 0.5\n"
        "layers.0.attention.wq.weight: 0.5\ntok_embeddings.weight: 0.5\n"
        "4 of 21 gradients differ by more than 1e-05; the first one that a backward makes: "
        "layers.1.ffn_norm.weight\n");
  CHECK_THAT(said_of("one", "nowhere", false), Contains("nowhere: there are no gradients"));
  std::filesystem::remove(folder.path() / "one" / "output.weight.f32");
  CHECK_THAT(said_of("one", "two", false), Contains("output.weight: in one of the two folders alone"));
}

}  // namespace hyperion::trainer
