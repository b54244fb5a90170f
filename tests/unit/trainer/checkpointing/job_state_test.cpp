// Each part of a job's state through its description: what one object says of itself, another one takes back.
#include "trainer/checkpointing/job_state.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "tests/support/documents.h"
#include "tests/support/error_of.h"
#include "tests/support/model_parameters.h"
#include "tests/support/momentum.h"
#include "tests/support/placements.h"
#include "tests/support/temporary_folder.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/optim/adam.h"

namespace hyperion::checkpointing {

using at::Tensor;
using Catch::Contains;
using checkpoint::Object;

namespace {

struct Saved {
  std::map<std::string, std::string> tensors;
  std::map<std::string, Object> objects;

  checkpoint::StateComponent::Find find() const {
    return [this](const std::string& key) -> const Object* {
      const auto found = objects.find(key);
      return found == objects.end() ? nullptr : &found->second;
    };
  }
};

Saved save(checkpoint::StateComponent& component) {
  Saved saved;
  for (const checkpoint::TensorState& tensor : component.tensors()) {
    CHECK(checkpoint::component_of(tensor.key) == component.name());
    saved.tensors[tensor.key] = {static_cast<const char*>(tensor.data), tensor.local_bytes()};
  }
  for (const checkpoint::ObjectState& object : component.objects()) {
    CHECK(checkpoint::component_of(object.key) == component.name());
    saved.objects[object.key] = object.value;
  }
  for (const std::string& key : component.required_objects()) CHECK(saved.objects.contains(key));
  return saved;
}

void load(checkpoint::StateComponent& component, const Saved& saved) {
  for (const checkpoint::TensorState& tensor : component.tensors()) {
    const std::string& bytes = saved.tensors.at(tensor.key);
    REQUIRE(bytes.size() == tensor.local_bytes());
    std::memcpy(tensor.data, bytes.data(), bytes.size());
  }
  component.load(saved.find());
}

// Two weights, with other numbers for every seed.
std::vector<parallel::ShardedParameterPtr> weights(int seed, bool frozen_norm = false) {
  at::manual_seed(seed);
  std::vector<parallel::ShardedParameterPtr> all;
  for (const auto& [name, shape] : {std::pair("w.weight", std::vector<int64_t>{7, 5}),
                                    std::pair("norm.weight", std::vector<int64_t>{5})}) {
    const ParameterPtr parameter = make_parameter(name, shape, Init::ones());
    parameter->trainable = shape.size() > 1 || !frozen_norm;
    all.push_back(std::make_shared<parallel::ShardedParameter>(parameter, test::cut_by_rows(1),
                                                               parallel::ShardingOptions{}));
    Tensor master = all.back()->master();
    master.normal_();
    all.back()->compute_shard().copy_(master);
    if (parameter->trainable) all.back()->bind_grad(at::randn({master.numel()}));
  }
  return all;
}

// At half its warm-up: the next step's rate is 0.25, of 0.5.
constexpr int64_t kHalfWarm = 99;
ResumePlan half_warm_plan() {
  ResumePlan plan;
  plan.config.optimizer.lr = 0.5;
  plan.config.lr_scheduler.warmup_steps = 200;
  return plan;
}

}  // namespace

TEST_CASE("weights come back and the copies in the compute dtype follow them") {
  const auto here = weights(1), there = weights(2);
  ModelState from(all_held(here)), to(all_held(there));
  const Saved saved = save(from);
  CHECK(saved.tensors.size() == 2);
  load(to, saved);
  for (size_t i = 0; i < here.size(); ++i) {
    CHECK(there[i]->master().equal(here[i]->master()));
    REQUIRE(there[i]->has_separate_compute_shard());
    CHECK(there[i]->compute_shard().equal(here[i]->master().to(at::kBFloat16)));
  }
}

TEST_CASE("an optimizer that comes back makes the same next update") {
  const auto here = weights(1), there = weights(2);
  optim::Adam adam(here, {}), other(there, {});
  const Tensor go = at::zeros({});
  for (int step = 0; step < 3; ++step) adam.step(1e-2, go);
  other.step(1e-1, go);
  const ResumePlan plan = half_warm_plan();
  const TrainState state{kHalfWarm};
  OptimizerState from(adam, all_held(here), {}, plan, state), to(other, all_held(there), {}, plan, state);
  ModelState model_from(all_held(here)), model_to(all_held(there));
  const Saved saved = save(from);
  CHECK(saved.tensors.size() == 2 * 3);
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.lr") == Object(0.25));
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.initial_lr") == Object(0.5));
  load(to, saved);
  load(model_to, save(model_from));
  CHECK(other.step_count().item<float>() == 3);
  for (size_t i = 0; i < here.size(); ++i) {
    Tensor gradient = there[i]->grad();
    gradient.copy_(here[i]->grad());
  }
  adam.step(1e-2, go);
  other.step(1e-2, go);
  for (size_t i = 0; i < here.size(); ++i) CHECK(there[i]->master().equal(here[i]->master()));
}

TEST_CASE("each parameter is stored with the settings of its group") {
  const auto here = weights(1);
  ResumePlan plan = half_warm_plan();
  plan.config.optimizer.groups = {{.match = {"w.*"}, .lr_scale = 0.5, .weight_decay = 0.25}};
  optim::Adam adam(here, plan.config.optimizer);
  const TrainState state{kHalfWarm};
  OptimizerState from(adam, all_held(here), {}, plan, state);
  const Saved saved = save(from);
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.lr") == Object(0.125));
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.initial_lr") == Object(0.25));
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.weight_decay") == Object(0.25));
  CHECK(saved.objects.at("optimizer.param_groups.norm.weight.lr") == Object(0.25));
  CHECK(saved.objects.at("optimizer.param_groups.norm.weight.weight_decay") == Object(0.1));
}

TEST_CASE(
    "an optimizer with other states of some parameters is described, saved and loaded by the same code") {
  const auto here = weights(1), there = weights(2);
  test::Momentum momentum(here), other(there);
  const Tensor go = at::zeros({});
  for (int step = 0; step < 3; ++step) momentum.step(1e-2, go, {});
  other.step(1e-1, go, {});
  const ResumePlan plan = half_warm_plan();
  const TrainState state{kHalfWarm};
  OptimizerState from(momentum, all_held(here), {}, plan, state), to(other, all_held(there), {}, plan, state);
  std::map<std::string, checkpoint::Dtype> described;
  for (const checkpoint::TensorState& tensor : from.tensors()) described.emplace(tensor.key, tensor.dtype);
  CHECK((described == std::map<std::string, checkpoint::Dtype>{
                          {"optimizer.state.w.weight.momentum_buffer", checkpoint::Dtype::kBFloat16},
                          {"optimizer.state.w.weight.step", checkpoint::Dtype::kFloat32},
                          {"optimizer.state.norm.weight.step", checkpoint::Dtype::kFloat32}}));
  const Saved saved = save(from);
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.lr") == Object(0.25));
  CHECK(saved.objects.at("optimizer.param_groups.w.weight.momentum") == Object(0.5));
  CHECK_FALSE(saved.objects.contains("optimizer.param_groups.w.weight.betas"));
  load(to, saved);
  CHECK(other.step_count().item<float>() == 3);
  CHECK(other.states(0)[0].equal(momentum.states(0)[0]));
  CHECK(momentum.states(1).empty());
  // The memory estimate multiplies this by the number of elements.
  CHECK(optim::bytes_per_element(momentum.kinds_of(here[0]->parameter()), sizeof(float)) *
            static_cast<double>(here[0]->master().numel()) ==
        static_cast<double>(momentum.states(0)[0].nbytes()));
}

TEST_CASE(
    "a frozen weight is saved and averaged as others, and no optimizer changes it or keeps a state of it") {
  const auto here = weights(1, /*frozen_norm=*/true);
  const Tensor before = here[1]->master().clone();
  std::unique_ptr<optim::Optimizer> optimizer;
  const config::OptimizerImplementation implementation =
      GENERATE(config::OptimizerImplementation::kFused, config::OptimizerImplementation::kForLoop);
  if (GENERATE(true, false))
    optimizer = optim::make_optimizer(here, {.implementation = implementation});
  else
    optimizer = std::make_unique<test::Momentum>(here);
  optim::Ema averages(here, {});
  const Tensor go = at::zeros({}), trained = here[0]->master().clone();
  for (int64_t step = 1; step <= 3; ++step) {
    optimizer->step(1e-2, go);
    averages.update(step, go);
  }
  CHECK_FALSE(here[0]->master().equal(trained));
  CHECK(here[1]->master().equal(before));
  CHECK(averages.tensors()[1].equal(before));
  CHECK_FALSE(here[1]->parameter().weight.requires_grad());
  const ResumePlan plan = half_warm_plan();
  const TrainState state{kHalfWarm};
  ModelState model(all_held(here));
  EmaState ema(averages, all_held(here));
  OptimizerState states(*optimizer, all_held(here), {}, plan, state);
  CHECK(save(model).tensors.contains("norm.weight"));
  CHECK(save(ema).tensors.contains("ema.norm.weight"));
  const Saved saved = save(states);
  for (const auto& [key, bytes] : saved.tensors) CHECK_THAT(key, !Contains("norm.weight"));
  for (const auto& [key, value] : saved.objects) CHECK_THAT(key, !Contains("norm.weight"));
  CHECK(saved.tensors.contains("optimizer.state.w.weight.step"));
}

TEST_CASE("the learning rate's curve is saved as torch's scheduler counts it, with the trajectory") {
  ResumePlan plan = half_warm_plan();
  plan.settings = {{"optimizer.lr", "0.5"}};
  const TrainState position{kHalfWarm};
  SchedulerState state(plan, position);
  const Saved saved = save(state);
  CHECK(saved.objects.at("lr_scheduler.last_epoch") == Object(kHalfWarm));
  CHECK(saved.objects.at("lr_scheduler._step_count") == Object(kHalfWarm + 1));
  CHECK(saved.objects.at("lr_scheduler.base_lrs") == Object::list({0.5}));
  CHECK(saved.objects.at("lr_scheduler._last_lr") == Object::list({0.25}));
  CHECK(saved.objects.at(std::string(checkpoint::kTrajectoryKey)) == to_object(plan.settings));
}

TEST_CASE("a data loader that comes back gives the next batch, and one without a saved position stays") {
  const test::TemporaryFolder folder;
  data::LoaderOptions options;
  options.sources = {{.path = folder.write("data.jsonl", test::json_lines(40, "doc"))}};
  options.encode = test::encode_bytes;
  options.seq_len = 16;
  options.rows = 2;
  data::DataLoader here(options), there(options), untouched(options);
  for (int batch = 0; batch < 5; ++batch) here.next();
  LoaderComponent from(here), to(there), other(untouched);
  load(to, save(from));
  const auto expected = here.next(), found = there.next();
  CHECK(found->tokens == expected->tokens);
  CHECK(found->labels == expected->labels);
  other.load(Saved{}.find());
  CHECK(untouched.next()->first_sequence == 0);
}

TEST_CASE("counters come back, also from torchtitan's per-rank count of tokens") {
  TrainState here{12, 4096, 2.5, 10}, there;
  TrainStateComponent from(here, 4, Object("toml")), to(there, 4, Object("toml"));
  const Saved saved = save(from);
  CHECK(saved.objects.at("train_state.ntokens_seen") == Object(1024));
  load(to, saved);
  CHECK(there.step == 12);
  CHECK(there.tokens_seen == 4096);
  CHECK(there.last_loss == 2.5);
  CHECK(there.last_loss_step == 10);

  TrainState theirs;
  TrainStateComponent of_torchtitan(theirs, 2, Object());
  load(of_torchtitan,
       {{}, {{"train_state.step", 3}, {"train_state.ntokens_seen", 100}, {"dataloader.world_size", 8}}});
  CHECK(theirs.step == 3);
  CHECK(theirs.tokens_seen == 800);
  CHECK(std::isnan(theirs.last_loss));
}

TEST_CASE("counters that cannot be right are refused by name") {
  const auto refused = [](const Object& step) {
    TrainState state;
    TrainStateComponent component(state, 1, Object());
    const Saved saved{{}, {{"train_state.step", step}}};
    return error_of(ExitCode::kBadData, [&] { component.load(saved.find()); });
  };
  CHECK_THAT(refused(-1), Contains("step -1"));
  CHECK_THAT(refused("12"), Contains("train_state.step") && Contains("another kind"));
}

TEST_CASE(
    "random numbers continue where they were, and on another number of ranks follow from seed, step and "
    "rank") {
  const TrainState state{5};
  const auto component = [&](int rank, int ranks, uint64_t seed) {
    return RngState(at::kCPU, rank, ranks, seed, state);
  };
  RngState from = component(1, 2, 9);
  at::manual_seed(3);
  const Saved saved = save(from);
  const Tensor expected = at::rand({8});

  RngState same = component(1, 2, 9);
  at::manual_seed(4);
  load(same, saved);
  CHECK(at::rand({8}).equal(expected));

  const auto drawn = [&](int rank, int ranks, uint64_t seed) {
    RngState other = component(rank, ranks, seed);
    at::manual_seed(4);
    other.load(saved.find());
    return at::rand({8});
  };
  const Tensor reseeded = drawn(1, 4, 9);
  CHECK_FALSE(reseeded.equal(expected));
  CHECK(drawn(1, 4, 9).equal(reseeded));
  CHECK_FALSE(drawn(0, 4, 9).equal(reseeded));
  CHECK_FALSE(drawn(1, 4, 10).equal(reseeded));

  at::manual_seed(4);
  component(1, 4, 9);  // a run that loads nothing starts from the same seeds
  CHECK(at::rand({8}).equal(reseeded));
}

TEST_CASE("averages come back under the names of their weights") {
  const auto here = weights(1), there = weights(2);
  optim::Ema averages(here, {}), others(there, {});
  EmaState from(averages, all_held(here)), to(others, all_held(there));
  const Saved saved = save(from);
  CHECK(saved.tensors.contains("ema.w.weight"));
  load(to, saved);
  for (size_t i = 0; i < here.size(); ++i) {
    CHECK(others.tensors()[i].equal(here[i]->master()));
    CHECK_FALSE(there[i]->master().equal(here[i]->master()));
  }
}

TEST_CASE("a type that no part of a job has is a bug") {
  CHECK(dtype_of(at::kBFloat16) == checkpoint::Dtype::kBFloat16);
  CHECK_THAT(error_of(ExitCode::kBug, [] { dtype_of(at::kComplexFloat); }), Contains("ComplexFloat"));
}

}  // namespace hyperion::checkpointing
