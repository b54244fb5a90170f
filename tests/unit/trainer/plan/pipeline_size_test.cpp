// The memory of a pipeline's rank.
#include <catch2/catch.hpp>

#include "models/description.h"
#include "models/flavors/registry.h"
#include "tests/unit/trainer/plan/job_sizes.h"
#include "trainer/plan/memory_needs.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {
namespace {

using parallel::GradientProgress;

}  // namespace

TEST_CASE("A rank of a pipeline has its stages and what it holds of microbatches at the largest moment") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  const config::JobConfig config =
      resolved(
          "[training]\nseq_len = 8192\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 2")
          .config;
  const PipelineShare first = share_of({{.end_block = 16, .embedding = true}}, 32),
                      last = share_of({{.first_block = 16, .end_block = 32, .head = true}}, 17);
  CHECK(parameters_of(model, first.stages[0]) + parameters_of(model, last.stages[0]) == Approx(parameters));
  const JobSize size = job_size(config, model, 4, 1, &first);
  CHECK(size.states() == Approx(18 * parameters_of(model, first.stages[0]) / 4));
  CHECK(size.gathered == 0);
  const double boundary = 8192.0 * 4096 * 2, rope = 8192.0 * 128 * 4;
  CHECK(size.activations == Approx(34 * boundary + rope));  // and a tensor each way; no logits
  CHECK(job_size(config, model, 4, 1, &last).activations > 19 * boundary + rope);

  // A schedule that divides backwards keeps inputs of the four products and gradients of their results.
  const double read = 2 * 4096 + 4096 + 14336 + 4096 + 2 * 1024 + 2 * 14336 + 2 * 4096;
  const PipelineShare divided = share_of(first.stages, 32, {}, /*deferred_blocks=*/64);
  CHECK(job_size(config, model, 4, 1, &divided).activations == Approx(64 * 8192.0 * 2 * read + rope));
  const PipelineShare few = share_of(first.stages, 32, {}, /*deferred_blocks=*/1);
  CHECK(job_size(config, model, 4, 1, &few).activations == size.activations);

  PipelineShare looped;
  for (const int64_t blocks : {4, 1, 2, 3}) looped.stages.push_back({.end_block = blocks});
  const parallel::StageWeights gathered{.gathered = true}, sharded{};
  looped.moments = {{.weights = {gathered, gathered, gathered, sharded}, .kept_inputs = 1},
                    {.weights = {gathered, sharded, gathered, gathered}, .kept_inputs = 1}};
  CHECK(job_size(config, model, 4, 1, &looped).gathered ==
        Approx(2 * parameters_of(model, {.end_block = 9})));
  CHECK(job_size(config, model, 1, 1, &looped).gathered == 0);
  CHECK(largest_job_size(config, model, 4, 1, std::vector{looped, first}).states() == size.states());
}

TEST_CASE("A stage of a pipeline has unsharded sums from its first gradients to its last") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const config::JobConfig config = resolved("[parallelism]\npipeline_parallel_degree = 2").config;
  using enum GradientProgress;
  const PipelineShare::Stage first{.end_block = 3}, last{.first_block = 3, .end_block = 4, .head = true};
  const double blocks = parameters_of(model, first), block = parameters_of(model, {.end_block = 1}),
               head = parameters_of(model, last) - block;
  const auto size_of = [&](const std::vector<parallel::StageWeights>& weights, int64_t shards = 4) {
    const PipelineShare share{.stages = {first, last}, .moments = {{.weights = weights}}};
    return job_size(config, model, shards, 1, &share);
  };
  const auto check = [](const JobSize& size, double sums, double reduced) {
    CHECK(size.sums == Approx(sums));
    CHECK(size.reduced == Approx(reduced));
    CHECK(size.activations == 0);  // no microbatch is in flight
  };
  check(size_of({{}, {.head_gradients = kPartial}}), 4 * head, 0);
  check(size_of({{}, {.gradients = kPartial, .head_gradients = kComplete}}), 4 * block, head);
  check(size_of({{.gradients = kPartial}, {.gradients = kComplete, .head_gradients = kComplete}}), 4 * blocks,
        block + head);
  // One shard adds each microbatch to the gradients.
  check(size_of({{}, {.gradients = kPartial, .head_gradients = kPartial}}, 1), 0, 4 * (block + head));
  const PipelineShare share{
      .stages = {first, last},
      .moments = {{.weights = {{}, {}}, .kept_inputs = 1}, {.weights = {{.gradients = kPartial}, {}}}}};
  const JobSize size = job_size(config, model, 4, 1, &share);  // the moment with more bytes
  CHECK(size.sums == Approx(4 * blocks));
  // A host holds all sharded gradients throughout.
  const double small = size.tokens + size.description + size.attention;
  CHECK(total(memory_needs(config, size, /*on_gpu=*/false).host) ==
        Approx(size.states() + size.sums + small));
}

TEST_CASE("on a GPU up to four sends of a pipeline are in flight, of which one is among the activations") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const PipelineShare share = share_of({{.end_block = 16, .embedding = true}}, 16);
  const double boundary = 2.0 * 2048 * 4096;
  for (const auto& [sequences, sends] : {std::pair(1, 0), {2, 1}, {4, 3}, {8, 3}}) {
    config::JobConfig config =
        resolved("[training]\nseq_len = 2048\n[parallelism]\npipeline_parallel_degree = 2").config;
    config.training.local_batch_size = sequences;
    JobSize size = job_size(config, model, 1, 1, &share);
    CHECK(size.sends == sends * boundary);
    const double with_sends = total(memory_needs(config, size, /*on_gpu=*/true).device),
                 on_cpu = total(memory_needs(config, size, /*on_gpu=*/false).host);
    size.sends = 0;
    CHECK(with_sends - total(memory_needs(config, size, /*on_gpu=*/true).device) == Approx(sends * boundary));
    CHECK(on_cpu == total(memory_needs(config, size, /*on_gpu=*/false).host));
  }
}

}  // namespace hyperion::trainer
