#include "trainer/config/fit_ranks.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"
#include "trainer/config/mesh_fits.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

using Catch::Contains;

namespace {

ResolvedConfig job_of(const std::string& degrees, const std::string& training = "", bool fit = true) {
  return parse_config((fit ? "[parallelism]\non_mesh_mismatch = \"fit\"\n" : "[parallelism]\n") + degrees +
                          "\n[training]\n" + training,
                      "job.toml", {});
}

std::string refused(const ResolvedConfig& resolved, int64_t world) {
  RunContext facts;
  facts.world_size = world;
  Problems found;
  check_config(resolved, facts, found);
  return found.lines().empty() ? "" : found.lines().front();
}

const std::string kHsdp = "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4";

}  // namespace

TEST_CASE("replicas follow the number of ranks before shards do") {
  const auto degrees = [](const std::string& keys, int64_t world) {
    return fit_degrees(job_of(keys).config, world);
  };
  CHECK(degrees(kHsdp, 4) == DataDegrees{1, 4});
  CHECK(degrees(kHsdp, 12) == DataDegrees{3, 4});
  CHECK(degrees(kHsdp, 6) == DataDegrees{1, 6});  // more shards need no more memory
  CHECK(degrees(kHsdp, 2) == DataDegrees{1, 2});
  CHECK(degrees(kHsdp, 3) == DataDegrees{1, 3});
  CHECK(degrees("data_parallel_replicate_degree = 4", 6) == DataDegrees{3, 2});
  CHECK(degrees("data_parallel_replicate_degree = 4", 1) == DataDegrees{1, 1});
}

TEST_CASE("the other dimensions keep their degrees") {
  const std::string kept =
      "\npipeline_parallel_degree = 2\ntensor_parallel_degree = 2\ncontext_parallel_degree = 2";
  for (const int64_t world : {8, 16, 24, 32, 40}) {
    CAPTURE(world);
    const FittedConfig fitted = fit_to_ranks(job_of(kHsdp + kept), world);
    const auto& p = fitted.resolved.config.parallelism;
    CHECK(mesh_fits(p, world));
    CHECK(p.pipeline_parallel_degree == 2);
    CHECK(p.tensor_parallel_degree == 2);
    CHECK(p.context_parallel_degree == 2);
    CHECK_FALSE(fitted.change.empty());
  }
  for (const int64_t world : {1, 2, 4, 12, 63}) {
    CAPTURE(world);
    CHECK_FALSE(fit_degrees(job_of(kHsdp + kept).config, world));
    CHECK(fit_to_ranks(job_of(kHsdp + kept), world).change.empty());
  }
}

TEST_CASE("shards stay a multiple of what the experts are divided over") {
  ResolvedConfig resolved = job_of(kHsdp + "\nexpert_parallel_degree = 4");
  resolved.config.model.name = "deepseek_v3";
  REQUIRE(divides_experts(resolved.config));
  CHECK(fit_degrees(resolved.config, 12) == DataDegrees{3, 4});
  CHECK_FALSE(fit_degrees(resolved.config, 6));
  CHECK(fitting_ranks(resolved.config, 6, -1) == std::vector<int64_t>{4, 8, 12});
}

TEST_CASE("the batch of the configured mesh stays, and one sentence says what changed") {
  const FittedConfig fitted = fit_to_ranks(job_of(kHsdp, "local_batch_size = 2\nseq_len = 128"), 4);
  CHECK(fitted.resolved.config.training.global_batch_size == 16);
  CHECK(fitted.change ==
        "Mesh: dp_replicate 2 x dp_shard 4 as configured -> dp_replicate 1 x dp_shard 4 for 4 ranks; pp 1, "
        "cp 1, tp 1 "
        "and ep 1 stay (parallelism.on_mesh_mismatch = \"fit\"); 2 microbatches of 2 sequences on each "
        "data-parallel "
        "rank instead of 1, 2,048 tokens per step as before");
  CHECK_THAT(fitted.resolved.origin("parallelism.data_parallel_replicate_degree"),
             Contains("fitted to 4 ranks"));
  CHECK(fit_to_ranks(job_of(kHsdp, "global_batch_size = 48"), 4).resolved.config.training.global_batch_size ==
        48);
  // A mesh without a number of shards says nothing about the batch: the checkpoint does.
  CHECK(fit_to_ranks(job_of("data_parallel_replicate_degree = 4"), 6)
            .resolved.config.training.global_batch_size == -1);
}

TEST_CASE("a mesh that fits is left alone, and so is every mesh unless the job asks") {
  CHECK(fit_to_ranks(job_of(kHsdp), 8).change.empty());
  CHECK(fit_to_ranks(job_of(kHsdp), 8).resolved.config.training.global_batch_size == -1);
  const FittedConfig refused_one = fit_to_ranks(job_of(kHsdp, "", false), 4);
  CHECK(refused_one.change.empty());
  CHECK(refused_one.resolved.config.parallelism.data_parallel_replicate_degree == 2);
}

TEST_CASE("a refusal names the numbers of ranks that work") {
  CHECK_THAT(
      refused(job_of(kHsdp, "", false), 4),
      Contains("it can have 8; parallelism.on_mesh_mismatch = \"fit\" changes replicate and shard to fit"));
  CHECK_THAT(refused(job_of("tensor_parallel_degree = 4", "", false), 6), Contains("it can have 4, 8 or 12"));
  CHECK_THAT(refused(job_of("tensor_parallel_degree = 4"), 6), Contains("it can have 4, 8 or 12"));
  CHECK_THAT(
      refused(fit_to_ranks(job_of(kHsdp, "local_batch_size = 2"), 3).resolved, 3),
      Contains(
          "training.global_batch_size = 16: expected a multiple of 6 (local_batch_size 2 x 3 data-parallel "
          "ranks), such as 12 or 18, or -1; 1, 2, 4 or 8 ranks can make this batch"));
}

TEST_CASE("what makes a batch possible is another number of ranks or a smaller microbatch") {
  const JobConfig config = job_of("", "local_batch_size = 2").config;
  CHECK(ways_to_batch(config, 8, 8) == "1, 2 or 4 ranks, or training.local_batch_size = 1");
  CHECK(ways_to_batch(config, 3, 8) == "1, 2 or 4 ranks");
  CHECK(ways_to_batch(config, 3, 3) == "training.local_batch_size = 1");
  CHECK(fitting_ranks(config, 5, 24) == std::vector<int64_t>{2, 3, 4, 6, 12});
  CHECK(fitting_ranks(config, 1'000'000, 7).empty());
}

}  // namespace hyperion::config
