#include "trainer/plan/size_estimate.h"

#include <array>

#include <catch2/catch.hpp>

#include "models/description.h"
#include "models/flavors/registry.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/attention/cpu_blocks.h"
#include "tests/support/error_of.h"
#include "tests/unit/trainer/plan/job_sizes.h"
#include "trainer/metrics/flops.h"
#include "trainer/plan/memory_needs.h"

namespace hyperion::trainer {
namespace {

using Catch::Contains;

constexpr double kGB = 1e9;

std::string refusal(const std::string& toml, const models::ModelArgs& model, double host, int64_t shards = 1,
                    std::optional<double> device = std::nullopt) {
  const config::ResolvedConfig config = resolved(toml);
  RankMemory memory{.host = {host, "this host's memory"}};
  if (device) memory.device = MemoryLimit{*device, "the GPU's memory"};
  const std::string said = error_of(
      ExitCode::kUsage, [&] { require_memory(config, job_size(config.config, model, shards, 1), memory); });
  return said == "nothing was thrown" ? "" : said;
}

}  // namespace

TEST_CASE("A job's least size is its states and what one microbatch keeps") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  config::JobConfig config = resolved("[training]\nseq_len = 8192\nlocal_batch_size = 1").config;
  const JobSize whole = job_size(config, model, 1, 1);
  CHECK(whole.states() == Approx(18 * parameters));   // fp32 master, two moments, gradient; the bf16 copy
  CHECK(whole.activations > 33 * 8192.0 * 4096 * 2);  // each block's input, the embedding's output
  CHECK(whole.activations < 2 * 33 * 8192.0 * 4096 * 2);
  CHECK(job_size(config, model, 64, 1).states() == Approx(whole.states() / 64));
  CHECK(job_size(config, model, 64, 1).activations == whole.activations);
  // The backward frees inputs while its gradients come, so that only the larger of both counts.
  const double inputs = 32 * 8192.0 * 4096 * 2, chunk = 64 << 20;
  CHECK(whole.freed == Approx(inputs + chunk).epsilon(0.01));
  CHECK(whole.total() == Approx(18 * parameters + whole.activations - whole.freed));
  const auto on_gpu = [&](int64_t shards, int64_t microbatches) {
    return total(memory_needs(config, job_size(config, model, shards, microbatches), /*on_gpu=*/true).device);
  };
  CHECK(on_gpu(1, 1) == Approx(whole.total()));
  const double gathered = job_size(config, model, 64, 1).gathered;
  CHECK(on_gpu(64, 1) == Approx(14 * parameters / 64 + gathered + whole.activations));
  CHECK(on_gpu(64, 2) == Approx(18 * parameters / 64 + gathered + whole.activations));  // of the first
  config.ema.enable = true;
  CHECK(job_size(config, model, 1, 1).averages == Approx(4 * parameters));
  config.checkpoint.enable = config.checkpoint.create_seed_checkpoint = true;
  CHECK(job_size(config, model, 1, 1).activations == 0);
}

TEST_CASE("Tensor parallel ranks share the matrices and the kept activations but not the norms") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  config::JobConfig config = resolved(
                                 "[training]\nseq_len = 8192\nlocal_batch_size = 1\nmixed_precision_param = "
                                 "\"float32\"\nloss_chunk_bytes = 1000000000000")
                                 .config;
  const JobSize one = job_size(config, model, 4, 1);
  config.parallelism.tensor_parallel_degree = 8;
  const JobSize eight = job_size(config, model, 4, 1);
  const double norms = 65 * 4096;  // two of each of 32 blocks, and the last
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  CHECK(one.states() == Approx(16 * parameters / 4));
  CHECK(eight.states() == Approx(16 * ((parameters - norms) / 8 + norms) / 4).epsilon(1e-9));
  const double rope = 8192.0 * 128 * 4;
  CHECK(eight.activations - rope == Approx((one.activations - rope) / 8));
  config.parallelism.disable_loss_parallel = true;
  CHECK(job_size(config, model, 4, 1).activations - eight.activations ==
        Approx(7.0 / 8 * 8192 * 128256 * 4));  // all logits
}

TEST_CASE("stages and tensor parallel ranks of a model with experts have their parts of the parameters") {
  const models::ModelArgs model = models::model_args("deepseek_v3", "671B");
  const PipelineShare::Stage first{.end_block = 31, .embedding = true},
      last{.first_block = 31, .end_block = 61, .head = true}, block{.first_block = 3, .end_block = 4};
  CHECK(parameters_of(model, first) + parameters_of(model, last) ==
        Approx(static_cast<double>(models::count_parameters(model).total)));
  // What makes the latents, the gate and four norms are on both ranks.
  CHECK(2 * parameters_of(model, block, 2) - parameters_of(model, block) ==
        Approx(7168 * (1536 + 512 + 64 + 256 + 2) + 1536 + 512));
  // Rows of experts lie where there are some: eight of each token, as inputs and as two hidden rows, in bf16,
  // and four numbers of 32 bits as their order.
  const auto of_experts = [&](const std::string& keys) {
    const config::JobConfig job =
        resolved("[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n" + keys).config;
    const auto activations = [&](int64_t layer) {
      const PipelineShare share = share_of({{.first_block = layer, .end_block = layer + 1}}, 1);
      return job_size(job, model, 1, 1, &share).activations;
    };
    return activations(3) - activations(0);
  };
  const double slots = 8.0 * 2048 * 8, eight = 2048 / 8, order = 4 * 4;
  CHECK(of_experts("") == Approx(slots * (2 * (7168 + 2 * 2048) + order)));
  // Tensor parallel ranks that divide each expert have the rows of all of them, else those of their tokens.
  const std::string parts = "[parallelism]\ntensor_parallel_degree = 8\n";
  CHECK(of_experts(parts) == Approx(slots * (2 * (7168 + 2 * eight) + order)));
  CHECK(of_experts(parts + "expert_parallel_degree = 2") ==
        Approx(slots / 8 * (2 * (7168 + 2 * 2048) + order)));
  // Each kept block has an order of its own; dense blocks and the head have none.
  const config::JobConfig job = resolved("[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n").config;
  const auto kept = [&](const PipelineShare::Stage& stage, int64_t inputs) {
    const PipelineShare share = share_of({stage}, inputs);
    return job_size(job, model, 1, 1, &share).activations;
  };
  const double boundary = 2.0 * 8 * 2048 * 7168;
  CHECK(kept({.first_block = 3, .end_block = 5}, 12) - kept({.first_block = 3, .end_block = 5}, 2) ==
        Approx(10 * (boundary + slots * order)));
  CHECK(kept({.first_block = 1, .end_block = 4, .head = true}, 12) -
            kept({.first_block = 1, .end_block = 4, .head = true}, 2) ==
        Approx(10 * (boundary + slots * order / 4)));
  // In FP8 two copies of the stacks besides.
  const std::string converted = "converters = [\"quantize.grouped_mm.float8\"]\n";
  CHECK(of_experts(converted) - of_experts("") == Approx(2 * 3.0 * 7168 * 2048 * 256));
  CHECK(of_experts(converted + parts) - of_experts(parts) == Approx(2 * 3.0 * 7168 * 2048 * 256 / 8));
}

TEST_CASE("the copy of the state for background saves counts where such saves will be made") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  const auto pool = [&](const std::string& checkpoint, const std::string& others = "", int64_t shards = 8) {
    const std::string toml =
        "[training]\nsteps = 100\n" + others + "[checkpoint]\nenable = true\n" + checkpoint;
    return job_size(resolved(toml).config, model, shards, 1).save_pool;
  };
  const std::string async = "async_mode = \"async\"\n";
  CHECK(pool(async + "interval = 10") == Approx(12 * parameters / 8));
  CHECK(pool(async + "interval = 10", "[ema]\nenable = true\n") == Approx(16 * parameters / 8));
  const std::string replicas = "[parallelism]\ndata_parallel_replicate_degree = 4\n";
  CHECK(pool(async + "interval = 10", replicas) == Approx(12 * parameters / 8 / 4));
  // A rank of the one replica that writes has its whole shard to write.
  CHECK(pool(async + "interval = 10\nwriters = \"one_replica\"", replicas) == Approx(12 * parameters / 8));
  CHECK(pool(async + "interval = 10", replicas, 128) == Approx(12 * parameters / 128 / 4));
  CHECK(pool(async + "interval = 10", replicas, 129) == Approx(12 * parameters / 129));  // of 516 ranks
  CHECK(pool(async + "interval = 100") == 0);  // the last save alone, which is synchronous
  CHECK(pool(async + "interval = 100\nenable_first_step_checkpoint = true") > 0);
  CHECK(pool(async + "interval = 10\nload_only = true") == 0);
  CHECK(pool("interval = 10") == 0);
}

TEST_CASE(
    "a host without memory for the copy of background saves is refused with the key that turns it off") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const std::string background =
      "[training]\nsteps = 100\n[checkpoint]\nenable = true\ninterval = 10\nasync_mode = \"async\"";
  const double gpu = 200 * kGB;
  CHECK(refusal(background, model, 120 * kGB, 1, gpu).empty());
  const std::string said = refusal(background, model, 64 * kGB, 1, gpu);
  CHECK_THAT(said,
             Contains("job.toml:6:14: checkpoint.async_mode = \"async\"") &&
                 Contains("copy for background saves 89.7 GiB") &&
                 Contains("but this host's memory is 59.6 GiB; set checkpoint.async_mode = \"disabled\""));
}

TEST_CASE("A model or sequence that cannot fit is refused with the sizes and the key") {
  const models::ModelArgs debug = models::model_args("llama3", "debugmodel");
  CHECK(refusal("", debug, kGB).empty());
  const std::string deep =
      refusal("[model.args]\nhidden_dim = 1000000000",
              models::model_args("llama3", "debugmodel", {.hidden_dim = 1'000'000'000}), 24 * kGB);
  CHECK_THAT(deep, Contains("job.toml:2:14: model.args.hidden_dim = 1000000000") &&
                       Contains("TiB of memory") && Contains("optimizer state") &&
                       Contains("but this host's memory is 22.4 GiB"));
  const std::string length = refusal("[training]\nseq_len = 999999999", debug, 24 * kGB);
  CHECK_THAT(length, Contains("training.seq_len = 999999999") && Contains("TiB of memory") &&
                         Contains("activations") && Contains("local_batch_size"));
  CHECK_THAT(refusal("", models::model_args("llama3", "405B"), 24 * kGB), Contains("model.flavor"));
}

TEST_CASE("Each thread's scratch of attention counts on a CPU") {
  const models::ModelArgs model = models::model_args("llama3", "debugmodel");
  const auto config = [](const std::string& keys) {
    return resolved("[training]\nseq_len = 1048576\nlocal_batch_size = 1\n" + keys);
  };
  const config::ResolvedConfig job = config("");
  const JobSize size = job_size(job.config, model, 1, 1);
  const auto scratch = [](const kernels::cpu::ElementKernels& kernels, int64_t head_dim) {
    return 4.0 * static_cast<double>(kernels.backward_scratch({.batch = 1,
                                                               .heads = 1,
                                                               .kv_heads = 1,
                                                               .queries = 1048576,
                                                               .keys = 1048576,
                                                               .head_dim = head_dim,
                                                               .scale = 1,
                                                               .causal = true,
                                                               .first_keys = nullptr,
                                                               .window = 0}));
  };
  const auto& blocks = kernels::cpu::attention_blocks_plain();  // which widen bf16
  CHECK(size.attention == Approx(scratch(blocks.bf16, model.attention.head_dim) * 14 / 16).epsilon(0.01));
  const JobSize fp32 = job_size(config("mixed_precision_param = \"float32\"").config, model, 1, 1);
  CHECK(fp32.attention == Approx(scratch(blocks.fp32, model.attention.head_dim)).epsilon(0.01));
  models::ModelArgs other_heads = model;
  const auto fp32_with = [&](int64_t head_dim) {
    other_heads.attention.head_dim = head_dim;
    return job_size(config("mixed_precision_param = \"float32\"").config, other_heads, 1, 1).attention;
  };
  for (const int64_t head_dim : {17, 24, 256})  // padded as the kernels pad them
    CHECK(fp32_with(head_dim) == Approx(scratch(blocks.fp32, head_dim)).epsilon(0.01));
  CHECK_FALSE(kernels::serves(kernels::AttentionKernel::kCpu, {at::kFloat, 257, 257, 1, 1}));
  CHECK(fp32_with(257) == 0);
  CHECK(size.attention_threads == static_cast<double>(model.attention.n_kv_heads));
  const double one = size.states() + size.description + size.activations + size.tokens + size.attention;
  const auto refusal_with = [&](int threads, std::optional<double> device = std::nullopt) {
    RankMemory memory{.host = {1.01 * one, "this host's memory"}, .threads = threads};
    if (device) memory.device = MemoryLimit{*device, "the GPU's memory"};
    return error_of(ExitCode::kUsage, [&] { require_memory(job, size, memory); });
  };
  CHECK(refusal_with(1) == "nothing was thrown");
  CHECK_THAT(refusal_with(1024), Contains("scratch of attention") && Contains("training.seq_len"));
  CHECK(refusal_with(1024, one) == "nothing was thrown");
  CHECK(job_size(config("[model]\nattention = \"flash\"").config, model, 1, 1).attention == 0);
}

TEST_CASE("What is on a GPU is compared with the GPU's memory and the rest with the host's") {
  const models::ModelArgs model = models::model_args("llama3", "8B");  // 18 bytes each: 144 GB
  const std::string toml = "[training]\nlocal_batch_size = 1";
  CHECK_THAT(refusal(toml, model, 64 * kGB, 1, 80 * kGB), Contains("but the GPU's memory is 74.5 GiB"));
  CHECK(refusal(toml, model, 64 * kGB, 8, 80 * kGB).empty());
  CHECK(refusal(toml + "\nenable_cpu_offload = true", model, 200 * kGB, 1, 80 * kGB).empty());
  CHECK_THAT(refusal(toml + "\nenable_cpu_offload = true", model, 64 * kGB, 1, 80 * kGB),
             Contains("but this host's memory is 59.6 GiB"));
}

TEST_CASE("Each group of several ranks has an NCCL communicator, and a dry run has none") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  config::JobConfig config = resolved("[parallelism]\ntensor_parallel_degree = 2").config;
  CHECK(job_size(config, model, 1, 1).communicators.count() == 1);
  CHECK(job_size(config, model, 4, 1).communicators.count() == 2);
  config.parallelism.data_parallel_replicate_degree = 2;
  CHECK(job_size(config, model, 4, 1).communicators.count() == 3);
  config.parallelism.pipeline_parallel_degree = 4;  // one for each direction
  CHECK(job_size(config, model, 4, 1).communicators.count() == 5);
  CHECK(job_size(config, models::model_args("qwen3", "0.6B"), 4, 1).communicators.count() ==
        6);  // a tied table
  const auto by_traffic = [&] {
    const Communicators all = job_size(config, model, 4, 1).communicators;
    return std::array{all.collectives, all.exchanges, all.stages};
  };
  CHECK(by_traffic() == std::array{3, 0, 2});
  config.parallelism.enable_async_tensor_parallel = true;  // tp ranks exchange chunks
  config.parallelism.context_parallel_degree = 2;
  CHECK(by_traffic() == std::array{2, 2, 2});
  config.comm.mode = config::CommMode::kFakeBackend;
  CHECK(job_size(config, model, 4, 1).communicators.count() == 0);
}

TEST_CASE("Gradients that are reduced once per step need fp32 sums of a tensor parallel rank's parameters") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  const std::string once = "[parallelism]\nfsdp_reduce_gradients = \"once_per_step\"\n";
  config::ResolvedConfig job = resolved(once + "[training]\nseq_len = 2048");
  CHECK(job_size(job.config, model, 8, 4).sums == 4 * parameters);
  CHECK(job_size(job.config, model, 8, 1).sums == 0);  // nothing is accumulated
  CHECK(job_size(job.config, model, 1, 4).sums == 0);  // the gradients themselves are unsharded
  CHECK(job_size(resolved("").config, model, 8, 4).sums == 0);
  // 14 bytes of each shard, and 4 of every parameter: 46 GB, of which sharded gradients take nothing.
  const JobSize size = job_size(job.config, model, 8, 4);
  const auto refusal_at = [&](double bytes) {
    return error_of(ExitCode::kUsage, [&] {
      require_memory(job, size, {.host = {64 * kGB, "the host"}, .device = MemoryLimit{bytes, "the GPU"}});
    });
  };
  const double needed = (14.0 / 8 + 4) * parameters + size.gathered + size.activations;
  CHECK(refusal_at(1.001 * needed) == "nothing was thrown");
  CHECK_THAT(refusal_at(0.999 * needed),
             Contains("gradients of several microbatches 29.9 GiB") &&
                 Contains("set parallelism.fsdp_reduce_gradients = \"every_microbatch\""));
  job.config.parallelism.tensor_parallel_degree = 8;
  CHECK(job_size(job.config, model, 8, 4).sums == Approx(parameters / 2).epsilon(1e-3));
}

TEST_CASE("what a rank needs is told apart by host and GPU, each part once") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  config::JobConfig config = resolved(
                                 "[training]\nseq_len = 2048\n[parallelism]\nfsdp_reduce_gradients = "
                                 "\"once_per_step\"\n[ema]\nenable = true\n")
                                 .config;
  const JobSize size = job_size(config, model, 8, 4);
  const double small = size.tokens + size.description, kept = size.activations + size.sums + size.gathered;
  MemoryNeeds needs = memory_needs(config, size, /*on_gpu=*/true);
  CHECK_FALSE(needs.keeps_state_in_host());
  CHECK(total(needs.host) == Approx(small));
  CHECK(total(needs.device) == Approx(kept + size.weights + size.optimizer + size.averages));  // sums alone
  needs = memory_needs(config, size, /*on_gpu=*/false, /*threads=*/2);
  CHECK(needs.device.empty());
  CHECK(total(needs.host) == Approx(small + kept + size.states() + size.averages + 2 * size.attention));
  config.training.enable_cpu_offload = true;
  needs = memory_needs(config, size, /*on_gpu=*/true);
  CHECK(needs.keeps_state_in_host());
  CHECK(total(needs.host) == Approx(small + size.states() + size.averages));
  CHECK(total(needs.device) == Approx(kept));
}

TEST_CASE("offloading is a remedy where the host has room for the states and the GPU for the rest") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto names_it = [&](double host, double gpu, const std::string& more = "") {
    const std::string said = refusal("[training]\nseq_len = 2048\n" + more, model, host, 1, gpu);
    CHECK_THAT(said, Contains("each rank needs at least"));
    return said.find("set training.enable_cpu_offload = true (134.") != said.npos;
  };
  CHECK(names_it(200 * kGB, 80 * kGB));
  CHECK_FALSE(names_it(100 * kGB, 80 * kGB));
  CHECK_FALSE(names_it(200 * kGB, 1e8));
  CHECK_FALSE(names_it(200 * kGB, 1e8, "enable_cpu_offload = true\n"));
}

TEST_CASE("With expert parallelism a rank never gathers other ranks' experts") {
  const models::ModelArgs model = models::model_args("deepseek_v3", "16B");
  config::ResolvedConfig job = resolved(
      "[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"\n[parallelism]\nfsdp_reduce_gradients = "
      "\"once_per_step\"");
  const JobSize one = job_size(job.config, model, 8, 4);
  job.config.parallelism.expert_parallel_degree = 4;
  const JobSize four = job_size(job.config, model, 8, 4);
  CHECK(four.states() == one.states());  // a rank of 8 has an eighth of either
  const double experts = 26.0 * 64 * 3 * 2048 * 1408;
  CHECK(one.sums - four.sums == Approx(4 * experts * 3 / 4));
  CHECK(four.communicators.count() == one.communicators.count() + 2);
  CHECK(job_size(job.config, model, 4, 4).communicators.count() ==
        one.communicators.count() + 1);  // each has its own experts
  // Of a stage with half of them; tensor parallel ranks have complete ones, or a half of each.
  const PipelineShare share = share_of({{.end_block = 14, .embedding = true}}, 1,
                                       {.gathered = true, .gradients = parallel::GradientProgress::kPartial});
  auto& degrees = job.config.parallelism;
  degrees.pipeline_parallel_degree = degrees.tensor_parallel_degree = 2;
  const auto of_stage = [&](int64_t parts, int64_t of_each) {
    degrees.expert_parallel_degree = parts;
    degrees.expert_tensor_parallel_degree = of_each;
    return job_size(job.config, model, 8, 4, &share);
  };
  const JobSize undivided = of_stage(1, 1), complete = of_stage(4, 1), halves = of_stage(4, 2);
  CHECK(undivided.sums - complete.sums == Approx(4 * experts / 2 * (1.0 / 2 - 1.0 / 4)));
  CHECK(undivided.sums - halves.sums == Approx(4 * experts / 2 * (1.0 / 2 - 1.0 / 8)));
  CHECK(undivided.gathered - halves.gathered == Approx(2 * experts / 2 * (1.0 / 2 - 1.0 / 8)));
  CHECK(complete.communicators.count() == undivided.communicators.count() + 2);
  CHECK(of_stage(16, 1).communicators.count() == undivided.communicators.count() + 1);
  degrees = config::JobConfig().parallelism;
  degrees.expert_parallel_degree = 4;
  job.config.model.name = "llama3";
  job.config.model.flavor = "8B";
  const models::ModelArgs dense = models::model_args("llama3", "8B");
  CHECK(job_size(job.config, dense, 8, 4).communicators.count() == one.communicators.count());
}

TEST_CASE("Without a pipeline the weights of one block are gathered, or those of all that stay") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const double block = parameters_of(model, {.end_block = 1});
  config::JobConfig config = resolved("").config;
  CHECK(job_size(config, model, 1, 1).gathered == 0);
  CHECK(job_size(config, model, 8, 1).gathered == Approx(2 * block));
  config.parallelism.fsdp_reshard_after_forward = config::ReshardAfterForward::kNever;
  CHECK(job_size(config, model, 8, 1).gathered == Approx(2 * 32 * block));
  config.parallelism.tensor_parallel_degree = 2;
  CHECK(job_size(config, model, 8, 1).gathered == Approx(2 * 32 * parameters_of(model, {.end_block = 1}, 2)));
  CHECK_THAT(refusal("[parallelism]\nfsdp_reshard_after_forward = \"never\"", model, 64 * kGB, 64, 10 * kGB),
             Contains("gathered weights 13.0 GiB") &&
                 Contains("set parallelism.fsdp_reshard_after_forward = \"always\", or"));
  CHECK_THAT(refusal("", model, 64 * kGB, 8, 10 * kGB), !Contains("fsdp_reshard_after_forward"));
  // A block with experts is the largest. Of 16 ranks of which 8 divide them two gather an eighth of them; of
  // 8 each keeps its own, and a dense block is the largest.
  const models::ModelArgs experts = models::model_args("deepseek_v3", "16B");
  config = resolved("[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"").config;
  const double all = job_size(config, experts, 8, 1).gathered;
  CHECK(all == Approx(2 * parameters_of(experts, {.first_block = 1, .end_block = 2})));
  config.parallelism.expert_parallel_degree = 8;
  const double of_experts = 2 * 64.0 * 3 * 2048 * 1408;
  CHECK(all - job_size(config, experts, 16, 1).gathered == Approx(of_experts * 7 / 8));
  CHECK(job_size(config, experts, 8, 1).gathered == Approx(2 * parameters_of(experts, {.end_block = 1})));
}

TEST_CASE("Ranks that share sequences keep their part, and gather keys and values of complete ones") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto size_with = [&](int64_t ranks, const std::string& keys = "", const std::string& training = "") {
    return job_size(
        resolved("[training]\nseq_len = 131072\nlocal_batch_size = 1\nloss_chunk_bytes = 1\n" + training +
                 "[parallelism]\ncontext_parallel_degree = " + std::to_string(ranks) + "\n" + keys)
            .config,
        model, 8, 1);
  };
  const double tokens = 131072, kept = 33 * tokens * 4096 * 2, rope = tokens * 128 * 4, logits = 128256 * 2.0;
  const double keys = 2 * tokens * 8 * 128;  // elements of keys and values
  CHECK(size_with(1).activations == Approx(kept + rope + logits));
  // In order and as they came, bf16; and the fp32 sums of their gradients. The head's logits are fewer, and
  // no block runs at the same time.
  for (const int ranks : {2, 8, 16})
    CHECK(size_with(ranks).activations == Approx(kept / ranks + rope + keys * (2 + 2 + 4)));
  // A ring has those of two ranks and the gradients of one, and sums of two.
  const std::string ring = "context_parallel_rotate_method = \"alltoall\"\n";
  CHECK(size_with(8, ring).activations == Approx(kept / 8 + rope + keys / 8 * (2 + 2 + 2 + 4 + 4)));
  CHECK(size_with(8, ring, "document_mask = true\n").activations == size_with(8).activations);
  CHECK(size_with(8, ring).attention == Approx(size_with(8).attention / 8));  // of the keys of one rank
  CHECK(size_with(8, "tensor_parallel_degree = 8\n").activations ==
        Approx(kept / 64 + rope + keys / 8 * (2 + 2 + 4)));
  CHECK(size_with(8, "[activation_checkpoint]\nmode = \"full\"\n").activations - size_with(8).activations ==
        Approx(32 * tokens / 8 * 4096 * 2));  // attention's results
  const auto latent_with = [&](const std::string& mode) {
    return job_size(resolved("[training]\nseq_len = 131072\n[parallelism]\ncontext_parallel_degree = 8\n"
                             "[activation_checkpoint]\nmode = \"" +
                             mode + "\"\n")
                        .config,
                    models::model_args("deepseek_v3", "16B"), 8, 1);
  };
  CHECK(latent_with("full").activations - latent_with("none").activations ==
        Approx(27 * 8 * tokens / 8 * 16 * 128 * 2));  // in the width of values, 128 beside keys of 192
  CHECK(size_with(8).communicators.count() == size_with(1).communicators.count() + 1);

  // A GPU's kernels for fp32 take as many keys as heads: both and their gradients, of complete sequences or
  // of one rank's.
  CHECK(size_with(8).repeated == 0);
  const std::string fp32 = "mixed_precision_param = \"float32\"\n";
  CHECK(size_with(8, "", fp32).repeated == 4 * tokens * 4096 * 4);
  CHECK(size_with(8, ring, fp32).repeated == 4 * tokens / 8 * 4096 * 4);
  CHECK(size_with(8, "tensor_parallel_degree = 8\n", fp32).repeated == 4 * tokens * 4096 / 8 * 4);
  models::ModelArgs alike = model;
  alike.attention.n_kv_heads = alike.attention.n_heads;
  CHECK(job_size(resolved("[training]\n" + fp32).config, alike, 8, 1).repeated == 0);

  // A sequence that is too long for a rank: more ranks are named.
  const std::string said =
      refusal("[training]\nseq_len = 131072\nlocal_batch_size = 1\n", model, 64 * kGB, 64, 30 * kGB);
  CHECK_THAT(said,
             Contains("activations of a microbatch 33.1 GiB") &&
                 Contains("lower training.seq_len, or raise parallelism.context_parallel_degree (1 now)"));
}

TEST_CASE("a width that changes in a part's description changes counts, FLOPs and memory by as much") {
  models::ModelDescription model = models::describe_model(models::model_args("llama3", "8B"));
  const config::JobConfig config = resolved("[training]\nseq_len = 8192").config;
  const auto counts = models::count_parameters(model);
  const JobSize size = job_size(config, model, 8, 1);
  const double flops = metrics::flops_per_token_causal(model, 8192);
  // Values of 64 elements a head more: rows of wv, columns of wo, elements that attention sums up.
  models::PartDescription& attention = model.kinds.at(0).attention;
  const int64_t more = 8 * 64, more_out = 32 * 64;
  attention.parameters.at(2).dims[0] += more;
  attention.parameters.at(3).dims[1] += more_out;
  attention.attention->v_head_dim += 64;
  const auto added = static_cast<double>(32 * 4096 * (more + more_out));
  CHECK(static_cast<double>(models::count_parameters(model).total - counts.total) == added);
  const JobSize wider = job_size(config, model, 8, 1);
  CHECK(wider.optimizer - size.optimizer == Approx(8 * added / 8));
  CHECK(wider.gathered - size.gathered == Approx(2 * added / 32));
  CHECK(metrics::flops_per_token_causal(model, 8192) - flops ==
        Approx(6 * added + 3.0 * 32 * 32 * 64 * 8192));
}

TEST_CASE("No size overflows") {
  const models::ModelArgs largest =
      models::model_args("llama3", "debugmodel", {.dim = 1 << 20, .n_layers = 1 << 10});
  config::JobConfig config =
      resolved("[training]\nseq_len = 1000000000\nlocal_batch_size = 1000000000").config;
  const JobSize size = job_size(config, largest, 1, 1'000'000'000);
  CHECK(size.tokens > 1e27);
  CHECK(size.activations > 1e26);
  CHECK_THAT(error_of(ExitCode::kUsage,
                      [] {
                        models::model_args(
                            "llama3", "debugmodel",
                            {.dim = 1'000'000'000, .n_layers = 10'000, .hidden_dim = 1'000'000'000});
                      }),
             Contains("more than any memory can hold"));
}

}  // namespace hyperion::trainer
