// FSDP, HSDP and replication on a CPU: equal to one rank, in FSDP2's order, with no more memory and bytes
// than planned.
#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "tests/distributed/step_traffic.h"
#include "tests/distributed/trace_ranges.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kSteps = 10;

std::vector<TinyStep> train_on(int ranks, const TinyJob& job, int64_t steps = kSteps) {
  return run_ranks(ranks, [=](const Environment& environment) { return train_tiny(job, environment, steps); })
      .front();
}

double largest_loss_difference(const std::vector<TinyStep>& a, const std::vector<TinyStep>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i].loss - b.at(i).loss) / std::abs(b[i].loss));
  return largest;
}

}  // namespace

TEST_CASE("every mesh trains to the same losses") {
  const char* model = GENERATE("llama3", "qwen3");
  const std::vector<TinyStep> one = train_on(1, {.model = model});
  REQUIRE(one.back().loss < 0.8 * one.front().loss);
  struct Layout {
    int ranks;
    MeshConfig mesh;
    int64_t accumulation;
  };
  for (const Layout& layout :
       {Layout{1, {}, 3}, Layout{2, {}, 1}, Layout{3, {}, 2}, Layout{4, {}, 1},
        Layout{4, {.dp_replicate = 2}, 3}, Layout{3, {.dp_replicate = 3, .dp_shard = 1}, 2}}) {
    CAPTURE(model, layout.ranks, layout.mesh.dp_replicate, layout.accumulation);
    const TinyJob job{.model = model, .mesh = layout.mesh, .accumulation = layout.accumulation};
    CHECK(largest_loss_difference(train_on(layout.ranks, job), one) < 5e-6);
  }
}

TEST_CASE("a model with experts trains to the same losses and biases on every mesh") {
  constexpr int64_t kSteps = 20;
  // Of each step loss and norm, then the biases of all experts: two blocks of five experts.
  const auto train = [](int ranks, const TinyJob& job) {
    return run_ranks(ranks,
                     [=](const Environment& environment) {
                       TinyTraining training(job, environment);
                       std::vector<double> numbers;
                       for (int64_t step = 0; step < kSteps; ++step) {
                         const TinyStep made = training.step(step);
                         numbers.insert(numbers.end(), {made.loss, made.grad_norm});
                       }
                       training.audit_replicas();
                       for (const models::ExpertBalancePtr& balance : training.model().balances())
                         for (int64_t expert = 0; expert < balance->bias->shape[0]; ++expert)
                           numbers.push_back(balance->bias->weight[expert].item<double>());
                       return numbers;
                     })
        .front();
  };
  const TinyJob base{.model = "deepseek_v3"};
  const std::vector<double> one = train(1, base);
  REQUIRE(one.size() == 2 * kSteps + 10);
  CHECK(one[2 * kSteps - 2] < 0.8 * one[0]);
  CHECK(*std::max_element(one.begin() + 2 * kSteps, one.end()) > 0);
  struct Layout {
    int ranks;
    MeshConfig mesh;
    int64_t accumulation;
  };
  for (const Layout& layout :
       {Layout{1, {}, 3}, Layout{2, {}, 1}, Layout{3, {}, 2}, Layout{4, {.dp_replicate = 2}, 1}}) {
    CAPTURE(layout.ranks, layout.mesh.dp_replicate, layout.accumulation);
    TinyJob job = base;
    job.mesh = layout.mesh;
    job.accumulation = layout.accumulation;
    const std::vector<double> found = train(layout.ranks, job);
    for (size_t i = 0; i < 2 * kSteps; ++i) CHECK(found[i] == Approx(one[i]).epsilon(5e-6));
    CHECK(std::equal(one.begin() + 2 * kSteps, one.end(), found.begin() + 2 * kSteps));
  }
}

TEST_CASE("activation checkpointing and resharding and transports change no bit") {
  const TinyJob base{.model = GENERATE("llama3", "deepseek_v3")};
  const std::vector<TinyStep> plain = train_on(2, base, 6);
  for (models::ActivationCheckpoint mode :
       {models::ActivationCheckpoint::kFull, models::ActivationCheckpoint::kSelectiveOp,
        models::ActivationCheckpoint::kElementwise}) {
    TinyJob job = base;
    job.checkpoint = mode;
    CHECK(train_on(2, job, 6) == plain);
  }
  TinyJob unsharded = base, over_sockets = base;
  unsharded.reshard_after_forward = false;
  CHECK(train_on(2, unsharded, 6) == plain);
  over_sockets.shared_memory = false;
  CHECK(train_on(2, over_sockets, 6) == plain);
}

TEST_CASE("weights side by side are multiplied as one on every mesh to the losses of separate products") {
  const char* model = GENERATE("llama3", "qwen3");
  const std::vector<TinyStep> separate = train_on(1, {.model = model}, 6);
  struct Layout {
    int ranks;
    MeshConfig mesh;
    int64_t shards;  // queries have 18 rows, keys and values 6, gate and up 25
    int64_t heads = 3, kv_heads = 1;
  };
  for (const Layout& layout :
       {Layout{1, {}, 1}, Layout{2, {}, 2}, Layout{3, {}, 3}, Layout{4, {.dp_replicate = 2}, 2},
        Layout{6, {}, 6}, Layout{2, {.dp_shard = 1, .tp = 2}, 1, 4, 2},
        Layout{4, {.dp_shard = 2, .tp = 2}, 2, 4, 2}}) {
    CAPTURE(model, layout.ranks, layout.mesh.tp);
    TinyJob job{.model = model, .mesh = layout.mesh, .heads = layout.heads, .kv_heads = layout.kv_heads};
    const std::vector<TinyStep> expected =
        layout.heads == 3 ? separate : train_on(1, {.model = model, .heads = 4, .kv_heads = 2}, 6);
    job.pack_weights = true;
    for (const models::ActivationCheckpoint mode :
         {models::ActivationCheckpoint::kNone, models::ActivationCheckpoint::kSelectiveOp}) {
      job.checkpoint = mode;
      const auto trained = run_ranks(layout.ranks, [=](const Environment& environment) {
        TinyTraining training(job, environment);
        for (const auto& [name, linear] : training.model_linears()) {
          const Parameter& weight = *linear->weight();
          if (!weight.pack) continue;
          const bool packed = weight.pack->weight.defined();
          if (packed != (weight.rows() % layout.shards == 0))
            throw std::runtime_error(name + (packed ? " is packed" : " is not packed"));
        }
        std::vector<TinyStep> steps;
        for (int64_t step = 0; step < 6; ++step) steps.push_back(training.step(step));
        return steps;
      });
      CHECK(largest_loss_difference(trained.front(), expected) < 5e-6);
    }
  }
}

TEST_CASE("bf16 compute trains close to fp32 but not equal") {
  const std::vector<TinyStep> fp32 = train_on(2, {}), bf16 = train_on(2, {.compute = at::kBFloat16});
  CHECK(largest_loss_difference(bf16, fp32) > 0);
  CHECK(largest_loss_difference(bf16, fp32) < 0.05);
}

// The order of FSDP2 (2 ranks, embedding + 3 blocks + head), but for two things: in forward the next unit's
// all-gather starts before a unit runs, not after (a GPU's queue hides the difference, a CPU has none), and
// the embedding's weight is not gathered for its backward, which reads none.
TEST_CASE("a step gathers and frees and reduces in the order of FSDP2 and holds two units at most") {
  const auto outcome = run_ranks_outcome(2, [](const Environment& environment) {
    TinyTraining training({}, environment);
    std::string trace;
    {
      const TraceRangeListener listener([&](const std::string& range) {
        if (range.find(" wait ") != std::string::npos) return;
        trace += range + " |";
        for (const auto& unit : training.stage().groups())
          if (TinyTraining::gathered_bytes(*unit) > 0) trace += " " + unit->name();
        trace += "\n";
      });
      training.step(0);
    }
    // After each bar: the units that hold gathered weights at that moment, or have them in flight.
    const std::string expected =
        "all-gather tok_embeddings | tok_embeddings\n"
        "all-gather layers.0 | tok_embeddings layers.0\n"
        "forward tok_embeddings | tok_embeddings layers.0\n"
        "all-gather layers.1 | layers.0 layers.1\n"
        "forward layers.0 | layers.0 layers.1\n"
        "all-gather layers.2 | layers.1 layers.2\n"
        "forward layers.1 | layers.1 layers.2\n"
        "all-gather norm,output | layers.2 norm,output\n"
        "forward layers.2 | layers.2 norm,output\n"
        "all-gather layers.2 | layers.2 norm,output\n"
        "forward and backward norm,output | layers.2 norm,output\n"
        "reduce-scatter norm,output | layers.2\n"
        "all-gather layers.1 | layers.1 layers.2\n"
        "backward layers.2 | layers.1 layers.2\n"
        "reduce-scatter layers.2 | layers.1\n"
        "all-gather layers.0 | layers.0 layers.1\n"
        "backward layers.1 | layers.0 layers.1\n"
        "reduce-scatter layers.1 | layers.0\n"
        "backward layers.0 | layers.0\n"
        "reduce-scatter layers.0 |\n"
        "backward tok_embeddings |\n"
        "reduce-scatter tok_embeddings |\n"
        "gradient norm |\n"
        "optimizer |\n";  // which clips
    if (trace != expected) throw std::runtime_error("trace was:\n" + trace);
  });
  for (const RankOutcome& rank : outcome) {
    INFO(rank.error);
    CHECK(rank.error.empty());
  }
}

TEST_CASE("a step moves the planned bytes and accumulation reduces the replicas once") {
  const bool once = GENERATE(false, true);
  const auto results = run_ranks(4, [once](const Environment& environment) {
    TinyTraining training(
        {.mesh = {.dp_replicate = 2}, .compute = at::kBFloat16, .accumulation = 3, .reduce_once = once},
        environment);
    return traffic_of_step(training);
  });
  for (const StepTraffic& rank : results) {
    // Half of a unit is another rank's. In each of 3 microbatches every unit is gathered once in bf16, blocks
    // twice, and gradients are scattered in fp32, or once their sum; the replicas' shards are reduced once,
    // at the end.
    CHECK(rank.all_gather == 3 * 2 * (rank.padded + rank.of_blocks) / 2);
    CHECK(rank.reduce_scatter == (once ? 1 : 3) * 4 * rank.padded / 2);
    CHECK(rank.all_reduce == 4 * rank.padded / 2);
  }
}

TEST_CASE("gradients that are reduced once per step are those that are reduced in every microbatch") {
  struct Layout {
    int ranks;
    MeshConfig mesh;
    at::ScalarType compute;
    const char* float8 = "";
    models::ActivationCheckpoint checkpoint = models::ActivationCheckpoint::kNone;
    bool reshard = true;
    int64_t alignment = 1;
  };
  const char* model = GENERATE("llama3", "qwen3");  // qwen3: the head's weight is the embedding's
  for (const Layout& layout :
       {Layout{1, {}, at::kFloat}, Layout{2, {}, at::kFloat},
        Layout{3, {}, at::kFloat, "", models::ActivationCheckpoint::kFull},
        Layout{4, {.dp_replicate = 2}, at::kFloat, "", models::ActivationCheckpoint::kSelectiveOp, false},
        Layout{4, {.dp_shard = 2, .tp = 2}, at::kFloat}, Layout{2, {}, at::kBFloat16},
        Layout{2, {}, at::kBFloat16, "", models::ActivationCheckpoint::kNone, true, kGpuShardAlignment},
        Layout{2, {}, at::kBFloat16, "tensorwise"}}) {
    CAPTURE(model, layout.ranks, layout.mesh.tp, layout.compute, layout.float8);
    TinyJob job{.model = model,
                .mesh = layout.mesh,
                .compute = layout.compute,
                .reshard_after_forward = layout.reshard,
                .checkpoint = layout.checkpoint,
                .accumulation = layout.ranks == 3 ? 2 : 3,
                .shard_alignment = layout.alignment,
                .heads = 4,
                .kv_heads = 2,
                .float8 = layout.float8};
    const auto gradients = [&](int ranks, bool once) {
      job.reduce_once = once;
      return run_ranks(ranks, [job](const Environment& environment) {
        TinyTraining training(job, environment);
        training.first_gradients();
        return training.first_gradients();  // nothing is left of a step before
      });
    };
    const auto often = gradients(layout.ranks, false), once = gradients(layout.ranks, true);
    CHECK((gradients(layout.ranks, true) == once));  // the same bits
    TinyJob alone = job;
    alone.mesh = {};
    alone.shard_alignment = 1;
    std::map<std::pair<int64_t, int64_t>, float> of_one_rank;
    for (const auto& [parameter, element, value] : run_one_rank([alone](const Environment& environment) {
           return TinyTraining(alone, environment).first_gradients();
         }))
      of_one_rank[{parameter, element}] = value;
    float largest = 0, difference = 0, to_one_rank = 0;
    for (size_t rank = 0; rank < once.size(); ++rank) {
      REQUIRE(once[rank].size() == often[rank].size());
      for (size_t i = 0; i < once[rank].size(); ++i) {
        const auto& [parameter, element, value] = once[rank][i];
        largest = std::max(largest, std::abs(value));
        difference = std::max(difference, std::abs(value - often[rank][i].value));
        to_one_rank = std::max(to_one_rank, std::abs(value - of_one_rank.at({parameter, element})));
      }
    }
    REQUIRE(largest > 0);
    CHECK(difference < 1e-6 * largest);
    // One rank has other microbatches, whose gradients bf16 rounds.
    CHECK(to_one_rank < (layout.compute == at::kFloat ? 2e-6 : 3e-2) * largest);
  }
}

TEST_CASE("a job that reduces gradients once per step has the losses of one that does in every microbatch") {
  for (const auto& [ranks, mesh] :
       {std::pair{2, MeshConfig{}}, std::pair{4, MeshConfig{.dp_replicate = 2}}}) {
    TinyJob job{.mesh = mesh, .accumulation = 3};
    const std::vector<TinyStep> often = train_on(ranks, job, 10);
    job.reduce_once = true;
    const std::vector<TinyStep> once = train_on(ranks, job, 10);
    CHECK(largest_loss_difference(once, often) < 1e-6);
    CHECK(train_on(ranks, job, 10) == once);
    job.shared_memory = ranks > 2;  // where sockets add up in the same order
    CHECK(train_on(ranks, job, 10) == once);
    job.accumulation = 1;
    const std::vector<TinyStep> one_batch = train_on(ranks, job, 2);
    job.reduce_once = false;
    CHECK(train_on(ranks, job, 2) == one_batch);  // without accumulation nothing changes
  }
}

TEST_CASE("a unit is gathered in one operation") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(2, [=](const Environment& environment) {
    TinyTraining training({.shared_memory = shared_memory}, environment);
    training.step(0);
    return training.ledger().entry("fsdp/0", "all_gather").calls;
  });
  for (const int64_t calls : results) CHECK(calls == 5 + 3);  // units, blocks again in backward
}

TEST_CASE("weights hold no storage after reshard and state takes 18 bytes per parameter in bf16") {
  struct Held {
    int64_t gathered = 0, state = 0;  // bytes
    int64_t padded = 0;               // elements of this rank's shards
  };
  const auto results = run_ranks(3, [](const Environment& environment) {
    TinyTraining training({.compute = at::kBFloat16}, environment);
    training.step(0);
    Held held;
    const auto bytes = [](const at::Tensor& tensor) {
      return static_cast<int64_t>(tensor.storage().nbytes());
    };
    for (const auto& group : training.stage().groups()) {
      held.gathered += TinyTraining::gathered_bytes(*group);
      for (const at::Tensor& gradients : group->local_gradients().tp_sharded) held.state += bytes(gradients);
    }
    for (const auto& parameter : training.stage().parameters()) {
      held.padded += parameter->padded_numel();
      held.state += bytes(parameter->master()) + bytes(parameter->all_gather_input());
      held.state += 8 * parameter->master().numel();  // exp_avg and exp_avg_sq have the master's shape
    }
    return held;
  });
  for (const Held& rank : results) {
    CHECK(rank.gathered == 0);
    CHECK(rank.state <= 18 * rank.padded);
    CHECK(rank.state >= 0.8 * 18 * rank.padded);  // padding of this odd model has no optimizer state
  }
}

}  // namespace hyperion::parallel
