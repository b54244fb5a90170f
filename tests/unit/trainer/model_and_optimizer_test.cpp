// What a job trains and saves, made without other processes: as rank r of n that exchange nothing.
#include "trainer/model_and_optimizer.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <torch/torch.h>

#include "tests/support/documents.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "trainer/config/load.h"
#include "trainer/config/model_args.h"
#include "trainer/gradient_dump.h"
#include "trainer/training_state.h"

namespace hyperion::trainer {

using at::Tensor;
using Catch::Contains;

namespace {

JobConfig config(const std::vector<Override>& overrides = {}) {
  return parse_config("[model]\nname = \"llama3\"\nflavor = \"debugmodel\"\n[parallelism]\n", "job.toml",
                      overrides)
      .config;
}

struct Rank {
  Rank(int rank, int world, const JobConfig& config, bool without_memory = false)
      : mesh({}, world),
        groups(mesh, {.rank = rank, .world_size = world}, {.backend = parallel::CommBackend::kFake}),
        args(model_args(config.model)),
        model(make_model_and_optimizer(
            args, config, {.groups = groups, .device = at::kCPU, .without_memory = without_memory})) {}
  parallel::Mesh mesh;
  parallel::ProcessGroups groups;
  models::ModelArgs args;
  ModelAndOptimizer model;
};

}  // namespace

TEST_CASE("initial weights depend on the seed alone and not on the number of ranks") {
  const JobConfig job = config();
  Rank whole(0, 1, job), first(0, 3, job), second(1, 3, job), third(2, 3, job), other(0, 1, job);
  for (Rank* rank : {&whole, &first, &second, &third}) initialise_weights(rank->model, 17);
  initialise_weights(other.model, 18);
  for (size_t i = 0; i < whole.model.parameters.size(); ++i) {
    const Tensor expected = whole.model.parameters[i]->master();
    CAPTURE(whole.model.parameters[i]->parameter().fqn);
    CHECK(torch::equal(expected,
                       torch::cat({first.model.parameters[i]->master(), second.model.parameters[i]->master(),
                                   third.model.parameters[i]->master()})));
    CHECK(torch::equal(whole.model.parameters[i]->compute_shard(), expected.to(at::kBFloat16)));
    if (expected.dim() > 1) CHECK_FALSE(torch::equal(expected, other.model.parameters[i]->master()));
  }
}

TEST_CASE("a model without memory has the shapes and states of a real one") {
  const JobConfig job = config();
  const Rank real(1, 2, job), shapes(1, 2, job, /*without_memory=*/true);
  REQUIRE(real.model.parameters.size() == shapes.model.parameters.size());
  for (size_t i = 0; i < real.model.parameters.size(); ++i) {
    CHECK(shapes.model.parameters[i]->master().is_meta());
    CHECK(shapes.model.optimizer->exp_avg()[i].is_meta());
    CHECK(shapes.model.parameters[i]->master().sizes() == real.model.parameters[i]->master().sizes());
  }
}

TEST_CASE("the state has each part once and model, optimizer and their place in the table") {
  JobConfig job = config({{"ema.enable", "true"}});
  Rank rank(0, 2, job, /*without_memory=*/true);
  job.ema.device = EmaDevice::kSame;
  rank.model.ema = std::make_unique<Ema>(rank.model.parameters, job.ema);
  TrainState state;
  const test::TemporaryFolder folder;
  const std::string text = folder.write("text.jsonl", "{\"text\": \"one two\"}\n");
  LoaderOptions options;
  options.dataset_path = text;
  options.encode = test::encode_bytes;
  options.seq_len = 4;
  options.rows = 1;
  DataLoader loader(options);
  ResumePlan plan;
  plan.config = job;
  const StateComponents components =
      state_components({rank.model, rank.mesh, 0, at::kCPU, state, loader, plan, job});
  std::vector<std::string> names;
  for (const auto& component : components) names.push_back(component->name());
  CHECK(names == std::vector<std::string>{"model", "optimizer", "ema", "train_state", "lr_scheduler",
                                          "dataloader", "rng"});
  const std::string table = state_table(components);
  CHECK_THAT(table, Contains("layers.0.attention.wq.weight") && Contains("2 shards x 1 replicas, dim 0 in 2"));
  CHECK_THAT(table, Contains("optimizer.state.norm.weight.exp_avg"));
  CHECK_THAT(table, Contains("lr_scheduler.last_epoch"));
}

TEST_CASE("gradients are written whole for a job of one rank and refused for several") {
  Rank rank(0, 1, config());
  for (const parallel::ShardedParameterPtr& parameter : rank.model.parameters)
    Tensor(parameter->grad()).fill_(0.5);
  const test::TemporaryFolder folder;
  setenv("HYPERION_DUMP_GRADIENTS", (folder.path() / "gradients").c_str(), 1);
  const auto path = gradient_dump_folder(1);
  const std::string refused = error_of(ExitCode::kUsage, [] { gradient_dump_folder(2); });
  unsetenv("HYPERION_DUMP_GRADIENTS");
  CHECK(refused == "HYPERION_DUMP_GRADIENTS needs a job of one rank, this one has 2");
  CHECK_FALSE(gradient_dump_folder(2));
  REQUIRE(path);
  dump_gradients(*path, rank.model.parameters);
  for (const parallel::ShardedParameterPtr& parameter : rank.model.parameters) {
    std::ifstream file(*path / (parameter->parameter().fqn + ".f32"), std::ios::binary);
    std::vector<float> values(static_cast<size_t>(parameter->master().numel()) + 1);
    file.read(reinterpret_cast<char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    CHECK(file.gcount() == parameter->master().numel() * 4);
    CHECK(std::all_of(values.begin(), values.end() - 1, [](float value) { return value == 0.5F; }));
  }
}

}  // namespace hyperion::trainer
