// Pipeline parallelism, alone and with FSDP, HSDP and tensor parallelism, on a CPU: the bits of one rank that
// runs the same microbatches one after the other.
#include <cmath>
#include <map>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include "base/failpoint.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kTrainedSteps = 4;

struct TrainedJob {
  std::vector<TinyStep> steps;
  std::map<std::pair<int64_t, int64_t>, double> gradients;  // of the first step: parameter, element -> value
  std::map<std::pair<int64_t, int64_t>, double> biases;     // after the last one: block and expert -> value
};

// What a rank has found: a gradient's element, an expert's bias, or a step's loss or norm.
struct Number {
  int64_t parameter, element;
  double value;
};
constexpr int64_t kLoss = -1, kNorm = -2;  // as parameters; elements are steps then
constexpr int64_t kBias = -3;              // of the first block with experts, -4 of the next one, ...

std::vector<Number> biases_of(TinyTraining& training) {
  std::vector<Number> numbers;
  const std::vector<models::ExpertBalancePtr> all = training.model().balances();
  for (const models::ExpertBalancePtr& balance : training.stage().balances()) {
    const int64_t block = std::ranges::find(all, balance) - all.begin();
    for (int64_t expert = 0; expert < balance->bias->shape[0]; ++expert)
      numbers.push_back({kBias - block, expert, balance->bias->weight[expert].item<double>()});
  }
  return numbers;
}

TrainedJob train_job(int ranks, const TinyJob& job) {
  const auto found = run_ranks(ranks, [=](const Environment& environment) {
    TinyTraining training(job, environment);
    std::vector<Number> numbers;
    for (const auto& [parameter, element, value] : training.first_gradients())
      numbers.push_back({parameter, element, value});
    for (int64_t i = 0; i < kTrainedSteps; ++i) {
      const TinyStep step = training.step(i);
      numbers.insert(numbers.end(), {{kLoss, i, step.loss}, {kNorm, i, step.grad_norm}});
    }
    training.audit_replicas();
    const std::vector<Number> biases = biases_of(training);
    numbers.insert(numbers.end(), biases.begin(), biases.end());
    return numbers;
  });
  TrainedJob run{.steps = std::vector<TinyStep>(kTrainedSteps), .gradients = {}, .biases = {}};
  std::map<std::pair<int64_t, int64_t>, double> known;
  for (const std::vector<Number>& of_rank : found)
    for (const auto& [parameter, element, value] : of_rank)
      if (known.try_emplace({parameter, element}, value).first->second != value)
        throw std::runtime_error("two ranks have different numbers for one gradient, loss or norm");
  for (const auto& [key, value] : known) {
    const auto& [parameter, element] = key;
    if (parameter >= 0)
      run.gradients[key] = value;
    else if (parameter <= kBias)
      run.biases[key] = value;
    else
      (parameter == kLoss ? run.steps[element].loss : run.steps[element].grad_norm) = value;
  }
  return run;
}

// Of the job on `mesh`, and of the same microbatches one after the other on the ranks of one stage.
struct Pair {
  TrainedJob pipeline, one;
};

Pair train_pair(const MeshConfig& mesh, TinyJob job) {
  job.heads = 4;
  job.kv_heads = 2;
  job.mesh = mesh;
  job.mesh.pp = 1;
  const int of_stage = mesh.dp_replicate * std::max(mesh.dp_shard, 1) * mesh.tp;
  const TrainedJob one = train_job(of_stage, job);
  job.mesh = mesh;
  return {train_job(mesh.pp * of_stage, job), one};
}

bool same_losses(const TrainedJob& a, const TrainedJob& b) {
  for (size_t i = 0; i < a.steps.size(); ++i)
    if (a.steps[i].loss != b.steps[i].loss) return false;
  return true;
}

void check_same_bits(const MeshConfig& mesh, const TinyJob& job) {
  CAPTURE(job.model, mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.tp, text_of(job.schedule), job.float8,
          job.compute, static_cast<int>(job.checkpoint));
  const auto [pipeline, one] = train_pair(mesh, job);
  CHECK(same_losses(pipeline, one));
  CHECK(pipeline.gradients == one.gradients);
  CHECK(pipeline.biases == one.biases);
  CHECK(largest_difference(pipeline.steps, one.steps) < 1e-12);  // of norms too
}

// |a - b| over |b|.
double distance(const TrainedJob& a, const TrainedJob& b) {
  double difference = 0, norm = 0;
  for (const auto& [element, value] : b.gradients) {
    difference += std::pow(a.gradients.at(element) - value, 2.0);
    norm += std::pow(value, 2.0);
  }
  return std::sqrt(difference / norm);
}

// Where gradients are added up in another order.
void check_equal_to_rounding(const MeshConfig& mesh, const TinyJob& job) {
  CAPTURE(job.model, mesh.pp, mesh.dp_shard, mesh.ep, text_of(job.schedule));
  const auto [pipeline, one] = train_pair(mesh, job);
  CHECK(pipeline.steps.front().loss == Approx(one.steps.front().loss).epsilon(1e-6));
  CHECK(distance(pipeline, one) < 1e-5);
  CHECK(largest_difference(pipeline.steps, one.steps) < 1e-5);
}

using enum PipelineKind;
using models::ActivationCheckpoint;

}  // namespace

TEST_CASE("a pipeline has the losses and gradients of one rank bit for bit") {
  TinyJob plain{.accumulation = 6};
  const auto with = [&](PipelineKind schedule, bool shared_memory = true) {
    TinyJob job = plain;
    job.schedule = schedule;
    job.shared_memory = shared_memory;
    return job;
  };
  check_same_bits({.pp = 2}, with(k1F1B));
  check_same_bits({.pp = 3}, with(kGPipe));
  check_same_bits({.pp = 2}, with(kInterleaved1F1B));
  check_same_bits({.pp = 2}, with(kInterleaved1F1B, /*shared_memory=*/false));
  check_same_bits({.pp = 2, .dp_shard = 2}, with(k1F1B));
  check_same_bits({.pp = 2, .dp_shard = 1, .tp = 2}, with(k1F1B));
  check_same_bits({.pp = 2, .dp_replicate = 2, .dp_shard = 1}, with(kInterleaved1F1B));
}

namespace {

TinyJob divided(PipelineKind schedule, ActivationCheckpoint checkpoint, at::ScalarType compute = at::kFloat) {
  return {.compute = compute, .checkpoint = checkpoint, .accumulation = 6, .schedule = schedule};
}

}  // namespace

TEST_CASE("a pipeline that divides backwards has the losses and gradients of one rank bit for bit") {
  using enum ActivationCheckpoint;
  check_same_bits({.pp = 2}, divided(kInterleavedZeroBubble, kNone));
  check_same_bits({.pp = 2}, divided(kZbvZeroBubble, kFull));
  check_same_bits({.pp = 2}, divided(kDualPipeV, kSelectiveOp, at::kBFloat16));
  check_same_bits({.pp = 2, .dp_shard = 2}, divided(kZbvZeroBubble, kElementwise, at::kBFloat16));
  check_same_bits({.pp = 2, .dp_replicate = 2, .dp_shard = 1}, divided(kDualPipeV, kNone));
  // Weight gradients of elementwise checkpointing gather the rows that they read.
  check_same_bits({.pp = 2, .dp_shard = 1, .tp = 2}, divided(kZbvZeroBubble, kElementwise));
  check_same_bits({.pp = 2, .dp_shard = 1, .tp = 2}, divided(kInterleavedZeroBubble, kFull, at::kBFloat16));
  for (const PipelineKind schedule : {kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    TinyJob of_four = divided(schedule, schedule == kDualPipeV ? kFull : kNone);
    of_four.layers = 6;
    of_four.accumulation = 12;
    check_same_bits({.pp = 4}, of_four);
  }
}

TEST_CASE("a pipeline of a model with experts has the bits of one rank, and its biases") {
  using enum ActivationCheckpoint;
  const auto experts = [](const char* model, PipelineKind schedule, ActivationCheckpoint checkpoint,
                          at::ScalarType compute = at::kFloat) {
    TinyJob job = divided(schedule, checkpoint, compute);
    job.model = model;
    return job;
  };
  check_same_bits({.pp = 2}, experts("deepseek_v3", k1F1B, kNone));
  check_same_bits({.pp = 2}, experts("qwen3_moe", kInterleavedZeroBubble, kFull));
  check_same_bits({.pp = 2, .dp_shard = 2}, experts("deepseek_v3", kZbvZeroBubble, kSelectiveOp));
  check_same_bits({.pp = 2}, experts("llama4", kDualPipeV, kElementwise, at::kBFloat16));
  check_same_bits({.pp = 2, .dp_replicate = 2, .dp_shard = 1},
                  experts("deepseek_v3", kInterleaved1F1B, kNone, at::kBFloat16));
  TinyJob of_four = experts("llama4", kZbvZeroBubble, kNone);  // of its stages one has no experts
  of_four.layers = 6;
  check_same_bits({.pp = 4}, of_four);
  check_same_bits({.pp = 4}, experts("deepseek_v3", kGPipe, kFull));
  check_same_bits({.pp = 2, .dp_shard = 1, .tp = 2}, experts("deepseek_v3", kZbvZeroBubble, kElementwise));
}

TEST_CASE("expert parallelism in a pipeline has the bits of expert parallelism alone") {
  using enum ActivationCheckpoint;
  const auto check = [](const MeshConfig& mesh, PipelineKind schedule, ActivationCheckpoint checkpoint,
                        at::ScalarType compute = at::kFloat) {
    TinyJob job = divided(schedule, checkpoint, compute);
    job.model = "deepseek_v3";
    job.experts = 4;
    if (schedule == kLoopedBfs)  // whose backwards run in reverse order
      check_equal_to_rounding(mesh, job);
    else
      check_same_bits(mesh, job);
  };
  const MeshConfig mesh{.pp = 2, .dp_shard = 2, .ep = 2};
  check(mesh, k1F1B, kNone);
  check(mesh, kGPipe, kFull);
  check(mesh, kInterleaved1F1B, kSelectiveOp, at::kBFloat16);
  check(mesh, kLoopedBfs, kNone);
  check(mesh, kInterleavedZeroBubble, kFull);
  check(mesh, kZbvZeroBubble, kElementwise, at::kBFloat16);
  check(mesh, kDualPipeV, kNone);
  check({.pp = 2, .dp_shard = 1, .tp = 2, .ep = 2}, kZbvZeroBubble, kFull);  // shared experts exchange too
}

TEST_CASE("FP8 weight gradients that are made later have the bits of one rank") {
  using enum ActivationCheckpoint;
  const auto fp8 = [](PipelineKind schedule, ActivationCheckpoint checkpoint, const char* recipe) {
    TinyJob job = divided(schedule, checkpoint, at::kBFloat16);
    job.float8 = recipe;
    job.float8_gather = std::string_view(recipe) == "tensorwise";
    return job;
  };
  check_same_bits({.pp = 2, .dp_shard = 2}, fp8(kZbvZeroBubble, kNone, "tensorwise"));
  check_same_bits({.pp = 2}, fp8(kInterleavedZeroBubble, kFull, "rowwise"));
  check_same_bits({.pp = 2}, fp8(kDualPipeV, kSelectiveOp, "rowwise_with_gw_hp"));
  check_same_bits({.pp = 2, .dp_shard = 1, .tp = 2}, fp8(kZbvZeroBubble, kElementwise, "tensorwise"));
}

TEST_CASE("FP8 and MXFP8 experts in a pipeline have the bits of the same microbatches without one") {
  using enum ActivationCheckpoint;
  const auto fp8 = [](PipelineKind schedule, ActivationCheckpoint checkpoint, float8::GroupedRecipe recipe) {
    TinyJob job = divided(schedule, checkpoint, at::kBFloat16);
    job.model = "qwen3_moe";
    job.experts = 4;
    job.expert_hidden = 64;
    job.fits_float8_experts = true;
    job.float8_experts = recipe;
    return job;
  };
  const float8::GroupedRecipe by_rows = float8::GroupedRecipe::kRowwise, blocks = float8::GroupedRecipe::kMx;
  check_same_bits({.pp = 2}, fp8(k1F1B, kFull, blocks));
  check_same_bits({.pp = 2}, fp8(kZbvZeroBubble, kNone, by_rows));  // weights' gradients are made later
  check_same_bits({.pp = 2, .dp_shard = 2, .ep = 2}, fp8(kInterleavedZeroBubble, kSelectiveOp, by_rows));
}

TEST_CASE("a pipeline that reduces gradients once has the losses of one rank to 1e-6") {
  for (const PipelineKind schedule : {kLoopedBfs, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    TinyJob job = divided(schedule, ActivationCheckpoint::kNone);
    job.reshard_after_forward = false;
    job.reduce_once = true;
    check_equal_to_rounding({.pp = 2, .dp_shard = 2}, job);
  }
}

namespace {

// The largest difference of two jobs' gradients, as a part of the largest gradient.
double largest_gradient_difference(const TrainedJob& a, const TrainedJob& b) {
  double difference = 0, largest = 0;
  for (const auto& [element, value] : b.gradients) {
    largest = std::max<double>(largest, std::abs(value));
    difference = std::max<double>(difference, std::abs(value - a.gradients.at(element)));
  }
  return difference / largest;
}

// Stages 0 and 3 on rank 0, 1 and 2 on rank 1; one microbatch after the other.
std::string v_shaped_order(int64_t microbatches) {
  std::string first, second;
  for (int64_t m = 0; m < microbatches; ++m) {
    first += fmt::format("{0}0F{1},3F{1},3B{1},0B{1}", m > 0 ? "," : "", m);
    second += fmt::format("{0}1F{1},2F{1},2B{1},1B{1}", m > 0 ? "," : "", m);
  }
  return first + "\n" + second + "\n";
}

}  // namespace

TEST_CASE("a pipeline of a tied table has the losses and gradients of one rank to rounding") {
  const test::TemporaryFolder folder;
  struct Layout {
    MeshConfig mesh;
    bool once = false, v_shaped = false, shared_memory = true;
  };
  for (const auto& [mesh, once, v_shaped, shared_memory] :
       {Layout{{.pp = 2}}, Layout{{.pp = 4}, true}, Layout{{.pp = 2}, false, true},
        Layout{{.pp = 2, .dp_shard = 2}, true}, Layout{{.pp = 2, .dp_shard = 2}, true, true},
        Layout{{.pp = 2, .dp_replicate = 2, .dp_shard = 1}, false, true},
        Layout{{.pp = 3, .dp_shard = 1, .tp = 2}, false, false, false}}) {
    TinyJob job{.model = "qwen3", .accumulation = 6, .heads = 4, .kv_heads = 2};
    REQUIRE(models::model_args(job.model, "debugmodel").tied);
    const TrainedJob one = train_job(1, job);
    job.mesh = mesh;
    job.reduce_once = once;
    job.reshard_after_forward = !once;
    job.shared_memory = shared_memory;
    if (v_shaped) job.schedule_csv = folder.write("order.csv", v_shaped_order(job.accumulation));
    CAPTURE(mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.tp, once, v_shaped);
    const TrainedJob pipeline =
        train_job(mesh.pp * mesh.dp_replicate * std::max(mesh.dp_shard, 1) * mesh.tp, job);
    CHECK(largest_difference(pipeline.steps, one.steps) < 1e-6);
    CHECK(largest_gradient_difference(pipeline, one) < 1e-5);
  }
}

TEST_CASE("copies of a tied table stay equal, and one that differs is found") {
  const auto audit = [](bool break_copy) {
    return run_ranks_outcome(6, [=](const Environment& environment) {
      TinyTraining training(
          {.model = "qwen3", .mesh = {.pp = 3, .dp_shard = 2}, .accumulation = 6, .heads = 4, .kv_heads = 2},
          environment);
      for (int64_t step = 0; step < 3; ++step) training.step(step);
      const at::NoGradGuard no_grad;
      if (break_copy && environment.rank == 5)
        training.stage().parameters().back()->master().view(-1)[0].add_(1e-6);
      training.audit_replicas();
    });
  };
  for (const RankOutcome& rank : audit(false)) CHECK(rank.error.empty());
  const auto broken = audit(true);
  for (const int rank : {1, 5})
    CHECK_THAT(broken[rank].error, Catch::Contains("group tied/1 (ranks 1 5)") &&
                                       Catch::Contains("tok_embeddings.weight: rank 5"));
  for (const int rank : {0, 2, 3, 4}) CHECK(broken[rank].error.empty());
}

TEST_CASE("a pipeline gives the loss of each microbatch in its place, in whatever order backwards run") {
  TinyJob job{.model = "llama3", .accumulation = 6, .heads = 4, .kv_heads = 2};
  const auto losses = [&](int ranks) {
    std::vector<double> found;  // of the one rank that has the head
    for (const std::vector<double>& rank : run_ranks(ranks, [=](const Environment& environment) {
           TinyTraining training(job, environment);
           const models::SequenceContext context = training.model().context(8, at::kCPU);
           std::vector<double> own;
           for (const at::Tensor& loss : training.schedule().train_step(
                    0, 6,
                    [&](size_t i) {
                      const at::Tensor tokens = at::full({1, 8}, static_cast<int64_t>(i), at::kLong);
                      return models::Microbatch{tokens, tokens + 1, context};
                    },
                    at::full({}, 0.5F)))
             own.push_back(loss.item<double>());
           return own;
         }))
      found.insert(found.end(), rank.begin(), rank.end());
    return found;
  };
  const std::vector<double> one = losses(1);
  REQUIRE(std::set(one.begin(), one.end()).size() == 6);
  job.mesh.pp = 2;
  job.schedule = kLoopedBfs;  // the last microbatch's backward comes first
  CHECK(losses(2) == one);
}

TEST_CASE("what layers of all stages report is what one rank reports") {
  TinyJob job{.model = "llama3", .accumulation = 6, .heads = 4, .kv_heads = 2};
  const auto reported = [&](int ranks) {
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      return TinyTraining(job, environment).first_layer_metrics();
    });
    for (const auto& rank : all) CHECK(rank == all.front());
    return all.front();
  };
  const std::vector<double> one = reported(1);
  REQUIRE(one.size() == 3 + 1);
  job.mesh = {.pp = 2};
  CHECK(reported(2) == one);
  job.mesh = {.pp = 4};  // the last stage has no block
  CHECK(reported(4) == one);
  job.mesh = {.pp = 2, .dp_shard = 2};
  job.accumulation = 3;
  const std::vector<double> sharded = reported(4);
  job.mesh = {.dp_shard = 2};
  CHECK(sharded == reported(2));
}

TEST_CASE("with mailboxes of one tensor and gathers that are held up no schedule hangs") {
  using enum PipelineKind;
  // Zero-bubble lists use what arrives in another order than it was sent in.
  for (const PipelineKind kind :
       {k1F1B, kGPipe, kLoopedBfs, kInterleaved1F1B, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    TinyJob job{.model = "llama3",
                .mesh = {.pp = 2, .dp_shard = 2},
                .accumulation = 6,
                .schedule = kind,
                .heads = 4,
                .kv_heads = 2};
    const auto train = [&](int held) {
      return run_ranks(4, [=](const Environment& environment) {
        if (held >= 0)
          arm_faults(fmt::format("rank={};point=step.gather;nth=0;action=sleep:0.005", held),
                     environment.rank);
        return train_tiny(job, environment, 1);
      });
    };
    const auto free = train(-1);
    job.mailbox_pieces = 1;
    for (const int held : {0, 3}) {
      CAPTURE(text_of(kind), held);
      CHECK(train(held) == free);
    }
  }
}

}  // namespace hyperion::parallel
