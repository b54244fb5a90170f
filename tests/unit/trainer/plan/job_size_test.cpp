#include "trainer/plan/job_size.h"

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
#include "trainer/plan/step_shape.h"

namespace hyperion::trainer {
namespace {

using Catch::Contains;

constexpr double kGB = 1e9;
constexpr double kLeastOfStep = 0.95;  // of memory_needs()

std::string refusal(const std::string& toml, const models::ModelArgs& model, double host, int shards = 1,
                    std::optional<double> device = std::nullopt) {
  const config::ResolvedConfig config = resolved(toml);
  RankMemory memory{.host = {host, "this host's memory"}};
  if (device) memory.device = MemoryLimit{*device, "the GPU's memory"};
  const std::string said = error_of(ExitCode::kUsage, [&] {
    require_memory(config, largest_size(config.config, model, shards, device.has_value()), memory);
  });
  return said == "nothing was thrown" ? "" : said;
}

}  // namespace

TEST_CASE("A job's least size is its states and what a step has at once") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  config::JobConfig config = resolved(
                                 "[training]\nseq_len = 8192\nlocal_batch_size = 1\n"
                                 "[activation_checkpoint]\nmode = \"full\"")
                                 .config;
  const JobSize all = size_of(config, model, 1);
  CHECK(all.states() == Approx(18 * parameters));  // fp32 master, two moments, gradient; the bf16 copy
  CHECK(size_of(config, model, 64).states() == Approx(all.states() / 64));
  const JobSize size = largest_size(config, model, 64);
  const double input = 8192.0 * 4096 * 2;  // of a block
  CHECK(size.peak.states == Approx(14 * parameters / 64));
  CHECK(size.peak.activations >= 32 * input);
  CHECK(size.peak.activations < 34 * input);
  const auto on_gpu = [&] { return total(memory_needs(config, size, /*on_gpu=*/true).device); };
  CHECK(on_gpu() == Approx(size.peak.states + kLeastOfStep * size.peak.step()));
  const auto on_host = [&](const JobSize& of) {
    return total(memory_needs(config, of, /*on_gpu=*/false).host) - of.tokens - of.description - of.attention;
  };
  const JobSize host = largest_size(config, model, 64, /*on_gpu=*/false);
  CHECK(host.peak.gradients < size.peak.gradients + 1);  // shards that live during their reduction
  CHECK(on_host(host) ==
        Approx(18 * parameters / 64 + kLeastOfStep * (host.peak.step() - host.peak.gradients)));
  config.ema.enable = true;
  CHECK(size_of(config, model, 1).averages == Approx(4 * parameters));
  config.checkpoint.enable = config.checkpoint.create_seed_checkpoint = true;
  CHECK(largest_size(config, model, 1).peak.total() == 0);
}

TEST_CASE("Tensor parallel ranks share the matrices and the kept activations but not the norms") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  config::JobConfig config = resolved(
                                 "[training]\nseq_len = 8192\nlocal_batch_size = 1\nmixed_precision_param = "
                                 "\"float32\"\n[activation_checkpoint]\nmode = \"full\"")
                                 .config;
  const JobSize one = largest_size(config, model, 4);
  config.parallelism.tensor_parallel_degree = 8;
  const JobSize eight = largest_size(config, model, 4);
  const double norms = 65 * 4096;  // two of each of 32 blocks, and the last
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  CHECK(one.states() == Approx(16 * parameters / 4));
  CHECK(eight.states() == Approx(16 * ((parameters - norms) / 8 + norms) / 4).epsilon(1e-9));
  CHECK(eight.peak.activations == Approx(one.peak.activations / 8).epsilon(0.05));
}

TEST_CASE("Stages of a model with experts have their parts of the parameters, and ranks the rows of theirs") {
  const models::ModelArgs model = models::model_args("deepseek_v3", "671B");
  const models::ModelDescription description = models::describe_model(model);
  const ModelStage first{.end_block = 31, .embedding = true},
      last{.first_block = 31, .end_block = 61, .head = true};
  CHECK(parameters_of(description, first) + parameters_of(description, last) ==
        Approx(static_cast<double>(models::count_parameters(model).total)));
  // Eight rows of each token, as inputs and as two hidden rows, in bf16. Each of the ranks that share an
  // expert has the rows of all of them.
  const auto expert_rows = [&](const std::string& keys) {
    return size_of(resolved("[model]\nname = \"deepseek_v3\"\nflavor = \"671B\"\n[training]\n"
                            "local_batch_size = 8\nseq_len = 2048\n[parallelism]\n" +
                            keys)
                       .config,
                   description, 8)
        .expert_rows;
  };
  const double rows = 8.0 * 2048 * 8;
  CHECK(expert_rows("") == 0);
  CHECK(expert_rows("expert_parallel_degree = 2") == Approx(rows * 2 * (7168 + 2 * 2048)));
  CHECK(expert_rows("expert_parallel_degree = 2\ntensor_parallel_degree = 8") ==
        Approx(rows / 8 * 2 * (7168 + 2 * 2048)));
  CHECK(expert_rows(
            "expert_parallel_degree = 2\ntensor_parallel_degree = 8\nexpert_tensor_parallel_degree = 8") ==
        Approx(rows * 2 * (7168 + 2 * 2048 / 8)));
}

TEST_CASE("the copy of the state for background saves counts where such saves will be made") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  const auto pool = [&](const std::string& checkpoint, const std::string& others = "", int shards = 8) {
    const std::string toml =
        "[training]\nsteps = 100\n" + others + "[checkpoint]\nenable = true\n" + checkpoint;
    return size_of(resolved(toml).config, model, shards).save_pool;
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
  const JobSize size = largest_size(job.config, model, 1, /*on_gpu=*/false);
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
  const JobSize fp32 = size_of(config("mixed_precision_param = \"float32\"").config, model, 1);
  CHECK(fp32.attention == Approx(scratch(blocks.fp32, model.attention.head_dim)).epsilon(0.01));
  models::ModelArgs other_heads = model;
  const auto fp32_with = [&](int64_t head_dim) {
    other_heads.attention.head_dim = head_dim;
    return size_of(config("mixed_precision_param = \"float32\"").config, other_heads, 1).attention;
  };
  for (const int64_t head_dim : {17, 24, 256})  // padded as the kernels pad them
    CHECK(fp32_with(head_dim) == Approx(scratch(blocks.fp32, head_dim)).epsilon(0.01));
  CHECK_FALSE(kernels::serves(kernels::AttentionKernel::kCpu, {at::kFloat, 257, 257, 1, 1}));
  CHECK(fp32_with(257) == 0);
  CHECK(size.attention_threads == static_cast<double>(model.attention.n_kv_heads));
  const double one = total(memory_needs(job.config, size, /*on_gpu=*/false).host);
  const auto refusal_with = [&](int threads, std::optional<double> device = std::nullopt) {
    RankMemory memory{.host = {1.01 * one, "this host's memory"}, .threads = threads};
    if (device) memory.device = MemoryLimit{*device, "the GPU's memory"};
    return error_of(ExitCode::kUsage, [&] { require_memory(job, size, memory); });
  };
  CHECK(refusal_with(1) == "nothing was thrown");
  CHECK_THAT(refusal_with(1024), Contains("scratch of attention") && Contains("training.seq_len"));
  CHECK(refusal_with(1024, one) == "nothing was thrown");
  CHECK(size_of(config("[model]\nattention = \"flash\"").config, model, 1).attention == 0);
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
  CHECK(size_of(config, model, 1).communicators.count() == 1);
  CHECK(size_of(config, model, 4).communicators.count() == 2);
  config.parallelism.data_parallel_replicate_degree = 2;
  CHECK(size_of(config, model, 4).communicators.count() == 3);
  config.parallelism.pipeline_parallel_degree = 4;  // one for each direction
  CHECK(size_of(config, model, 4).communicators.count() == 5);
  CHECK(size_of(config, models::model_args("qwen3", "0.6B"), 4).communicators.count() == 6);  // a tied table
  const auto by_traffic = [&] {
    const Communicators all = size_of(config, model, 4).communicators;
    return std::array{all.collectives, all.exchanges, all.stages};
  };
  CHECK(by_traffic() == std::array{3, 0, 2});
  config.parallelism.enable_async_tensor_parallel = true;  // tp ranks exchange chunks
  config.parallelism.context_parallel_degree = 2;
  CHECK(by_traffic() == std::array{2, 2, 2});
  config.comm.mode = config::CommMode::kFakeBackend;
  CHECK(size_of(config, model, 4).communicators.count() == 0);
}

TEST_CASE("Gradients that are reduced once per step need fp32 sums of a tensor parallel rank's parameters") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto parameters = static_cast<double>(models::count_parameters(model).total);
  const std::string batch = "[training]\nseq_len = 2048\nlocal_batch_size = 1\nglobal_batch_size = 32\n",
                    once = "[parallelism]\nfsdp_reduce_gradients = \"once_per_step\"\n";
  config::ResolvedConfig job = resolved(batch + once);
  const JobSize size = largest_size(job.config, model, 8);
  CHECK(size.peak.unsharded > 3.8 * parameters);
  CHECK(size.peak.gradients < 0.1 * size.gradients);  // they take turns with the sums
  CHECK(largest_size(resolved(batch).config, model, 8).peak.unsharded < 0.6 * parameters);
  const auto refusal_at = [&](double bytes) {
    return error_of(ExitCode::kUsage, [&] {
      require_memory(job, size, {.host = {64 * kGB, "the host"}, .device = MemoryLimit{bytes, "the GPU"}});
    });
  };
  const double needed = size.peak.states + kLeastOfStep * size.peak.step();
  CHECK(refusal_at(1.001 * needed) == "nothing was thrown");
  CHECK_THAT(refusal_at(0.999 * needed),
             Contains("unsharded gradients 2") &&
                 Contains("set parallelism.fsdp_reduce_gradients = \"every_microbatch\""));
  job.config.parallelism.tensor_parallel_degree = 8;
  CHECK(largest_size(job.config, model, 8).peak.unsharded == Approx(size.peak.unsharded / 8).epsilon(0.02));
}

TEST_CASE("what a rank needs is told apart by host and GPU, each part once") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  config::JobConfig config =
      resolved("[training]\nseq_len = 2048\nlocal_batch_size = 1\n[ema]\nenable = true\n").config;
  JobSize size = largest_size(config, model, 8);
  const double small = size.tokens + size.description;
  MemoryNeeds needs = memory_needs(config, size, /*on_gpu=*/true);
  CHECK_FALSE(needs.keeps_state_in_host());
  CHECK(total(needs.host) == Approx(small));
  CHECK(total(needs.device) ==
        Approx(size.weights + size.optimizer + size.averages + kLeastOfStep * size.peak.step()));
  config.training.enable_cpu_offload = true;
  size = largest_size(config, model, 8);
  needs = memory_needs(config, size, /*on_gpu=*/true);
  CHECK(needs.keeps_state_in_host());
  CHECK(total(needs.host) == Approx(small + size.states()));
  CHECK(size.peak.states == 0);
  CHECK(total(needs.device) == Approx(kLeastOfStep * (size.peak.step() - size.peak.gradients)));
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
  config::JobConfig config = resolved(
                                 "[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"\n[training]\n"
                                 "local_batch_size = 1\nglobal_batch_size = 32\n[parallelism]\n"
                                 "fsdp_reduce_gradients = \"once_per_step\"")
                                 .config;
  const JobSize one = largest_size(config, model, 8);
  config.parallelism.expert_parallel_degree = 4;
  const JobSize four = largest_size(config, model, 8);
  CHECK(four.states() == one.states());  // a rank of 8 has an eighth of either
  const double experts = 26.0 * 64 * 3 * 2048 * 1408;
  CHECK(one.peak.unsharded - four.peak.unsharded == Approx(4 * experts * 3 / 4).epsilon(0.02));
  CHECK(four.communicators.count() == one.communicators.count() + 2);
  CHECK(size_of(config, model, 4).communicators.count() ==
        one.communicators.count() + 1);  // each has its own experts
  config.model.name = "llama3";
  config.model.flavor = "8B";
  CHECK(size_of(config, models::model_args("llama3", "8B"), 8).communicators.count() ==
        one.communicators.count());
}

TEST_CASE("Without a pipeline the weights of a few units are gathered, or those of all that stay") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const double block = parameters_of(models::describe_model(model), {.end_block = 1});
  config::JobConfig config = resolved("").config;
  CHECK(largest_size(config, model, 1).peak.gathered == 0);
  CHECK(largest_size(config, model, 8).peak.gathered < 2 * 4 * block);
  config.parallelism.fsdp_reshard_after_forward = config::ReshardAfterForward::kNever;
  CHECK(largest_size(config, model, 8).peak.gathered >= 2 * 31 * block);
  CHECK_THAT(refusal("[parallelism]\nfsdp_reshard_after_forward = \"never\"", model, 64 * kGB, 64, 10 * kGB),
             Contains("gathered weights 1") &&
                 Contains("set parallelism.fsdp_reshard_after_forward = \"always\", or"));
  CHECK_THAT(refusal("", model, 64 * kGB, 8, 10 * kGB), !Contains("fsdp_reshard_after_forward"));
}

TEST_CASE("Ranks that share sequences keep their part, and gather keys and values of complete ones") {
  const models::ModelArgs model = models::model_args("llama3", "8B");
  const auto config_with = [&](int64_t ranks, const std::string& keys = "",
                               const std::string& training = "") {
    return resolved("[training]\nseq_len = 131072\nlocal_batch_size = 1\n" + training +
                    "[parallelism]\ncontext_parallel_degree = " + std::to_string(ranks) + "\n" + keys +
                    "[activation_checkpoint]\nmode = \"full\"\n")
        .config;
  };
  const JobSize one = largest_size(config_with(1), model, 8), eight = largest_size(config_with(8), model, 8);
  // Each block keeps attention's results besides its input.
  CHECK(eight.peak.activations == Approx(2 * one.peak.activations / 8).epsilon(0.1));
  CHECK(eight.communicators.count() == one.communicators.count() + 1);
  const std::string ring = "context_parallel_rotate_method = \"alltoall\"\n";
  CHECK(largest_size(config_with(8, ring), model, 8).peak.working < eight.peak.working);
  CHECK(size_of(config_with(8, ring), model, 8).attention ==
        Approx(eight.attention / 8));  // of one rank's keys

  // A GPU's kernels for fp32 take as many keys as heads: both and their gradients, of complete sequences or
  // of one rank's.
  const double tokens = 131072;
  const std::string fp32 = "mixed_precision_param = \"float32\"\n";
  const auto repeated = [](const config::JobConfig& config, const models::ModelArgs& args) {
    const models::ModelDescription described = models::describe_model(args);
    return BlockShape(described.kinds[0], args, config, mesh_of(config, 8)).repeated;
  };
  CHECK(repeated(config_with(8), model) == 0);
  CHECK(repeated(config_with(8, "", fp32), model) == 4 * tokens * 4096 * 4);
  CHECK(repeated(config_with(8, ring, fp32), model) == 4 * tokens / 8 * 4096 * 4);
  CHECK(repeated(config_with(8, "tensor_parallel_degree = 8\n", fp32), model) == 4 * tokens * 4096 / 8 * 4);
  models::ModelArgs alike = model;
  alike.attention.n_kv_heads = alike.attention.n_heads;
  CHECK(repeated(config_with(1, "", fp32), alike) == 0);

  // A sequence that is too long for a rank: more ranks are named.
  const std::string said =
      refusal("[training]\nseq_len = 131072\nlocal_batch_size = 1\n", model, 64 * kGB, 64, 30 * kGB);
  CHECK_THAT(said,
             Contains("activations of a microbatch") &&
                 Contains("lower training.seq_len, or raise parallelism.context_parallel_degree (1 now)"));
}

TEST_CASE("a width that changes in a part's description changes counts, FLOPs and memory by as much") {
  models::ModelDescription model = models::describe_model(models::model_args("llama3", "8B"));
  const config::JobConfig config = resolved("[training]\nseq_len = 8192").config;
  const auto counts = models::count_parameters(model);
  const JobSize size = size_of(config, model, 8);
  const double flops = metrics::flops_per_token_causal(model, 8192);
  // Values of 64 elements a head more: rows of wv, columns of wo, elements that attention sums up.
  models::PartDescription& attention = model.kinds.at(0).attention;
  const int64_t more = 8 * 64, more_out = 32 * 64;
  attention.parameters.at(2).dims[0] += more;
  attention.parameters.at(3).dims[1] += more_out;
  attention.attention->v_head_dim += 64;
  const auto added = static_cast<double>(32 * 4096 * (more + more_out));
  CHECK(static_cast<double>(models::count_parameters(model).total - counts.total) == added);
  const JobSize wider = size_of(config, model, 8);
  CHECK(wider.optimizer - size.optimizer == Approx(8 * added / 8));
  CHECK(metrics::flops_per_token_causal(model, 8192) - flops ==
        Approx(6 * added + 3.0 * 32 * 32 * 64 * 8192));
}

TEST_CASE("No size overflows") {
  const models::ModelArgs largest =
      models::model_args("llama3", "debugmodel", {.dim = 1 << 20, .n_layers = 1 << 10});
  config::JobConfig config =
      resolved("[training]\nseq_len = 1000000000\nlocal_batch_size = 1000000000").config;
  config.training.global_batch_size = 1'000'000'000'000'000'000;
  const JobSize size = largest_size(config, largest, 1);
  CHECK(size.tokens > 1e27);
  CHECK(size.peak.activations > 1e13);
  CHECK_THAT(error_of(ExitCode::kUsage,
                      [] {
                        models::model_args(
                            "llama3", "debugmodel",
                            {.dim = 1'000'000'000, .n_layers = 10'000, .hidden_dim = 1'000'000'000});
                      }),
             Contains("more than any memory can hold"));
}

}  // namespace hyperion::trainer
