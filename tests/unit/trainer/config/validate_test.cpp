#include "trainer/config/validate.h"

#include <algorithm>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "models/flavors/registry.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "trainer/config/input_path.h"
#include "trainer/config/schema.h"

namespace hyperion::config {

using Catch::Contains;
namespace fs = std::filesystem;

namespace {

ResolvedConfig parse(const std::string& toml) {
  return parse_config(toml, "job.toml", {});
}

std::vector<std::string> all_problems(const std::string& toml, const RunContext& facts = {}) {
  Problems found;
  check_config(parse(toml), facts, found);
  return found.lines();
}

// The only problem there is; "" when there is none.
std::string problem(const std::string& toml, const RunContext& facts = {}) {
  const auto lines = all_problems(toml, facts);
  CHECK(lines.size() <= 1);
  return lines.empty() ? "" : lines[0];
}

// What check_input() finds of data; "" when nothing.
std::string missing_data(const std::string& toml) {
  Problems found;
  for (const char* key : {"training.dataset_path", "validation.dataset_path"})
    check_input(parse(toml), key, "/", found);
  CHECK(found.lines().size() <= 1);
  return found.lines().empty() ? "" : found.lines()[0];
}

RunContext ranks(int64_t world_size) {
  RunContext facts;
  facts.world_size = world_size;
  return facts;
}

RunContext model(models::ModelArgs dimensions) {
  RunContext facts;
  facts.model = dimensions;
  return facts;
}

}  // namespace

TEST_CASE("the default configuration runs on any number of ranks") {
  for (const int64_t world : {1, 2, 3, 8, 1000}) CHECK(problem("", ranks(world)).empty());
}

TEST_CASE("the mesh must be the ranks of the job") {
  CHECK(problem("[parallelism]\ndata_parallel_replicate_degree = 2", ranks(4)).empty());
  CHECK(problem("[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 2", ranks(4))
            .empty());
  CHECK_THAT(problem("[parallelism]\ndata_parallel_shard_degree = 2", ranks(4)),
             Contains("job.toml:2:30: parallelism.data_parallel_shard_degree = 2: pipeline 1 x replicate 1 x "
                      "shard 2 x context 1 "
                      "x tensor 1 must be the 4 ranks of the job"));
  CHECK_THAT(problem("[parallelism]\ndata_parallel_replicate_degree = 3", ranks(4)), Contains("divide them"));
  CHECK_THAT(problem("[parallelism]\ndata_parallel_replicate_degree = 8", ranks(4)), Contains("4 ranks"));
  const std::string huge = "degree = 1000000\n";
  CHECK_THAT(
      problem("[parallelism]\ndata_parallel_replicate_" + huge + "data_parallel_shard_" + huge, ranks(1)),
      Contains("1 rank of the job"));
}

TEST_CASE("the global batch must be whole microbatches on every rank") {
  const std::string toml = "[training]\nlocal_batch_size = 4\nglobal_batch_size = 24";
  CHECK(problem(toml, ranks(1)).empty());
  CHECK(problem(toml, ranks(3)).empty());
  CHECK_THAT(problem(toml, ranks(4)), Contains("training.global_batch_size = 24: expected a multiple of 16"));
  CHECK_THAT(problem("[training]\nlocal_batch_size = 4\nglobal_batch_size = 2", ranks(1)),
             Contains("multiple of 4"));
}

TEST_CASE("data-parallel ranks are the world without the other dimensions") {
  CHECK(data_parallel_degree(JobConfig(), 6) == 6);
  CHECK(data_parallel_degree(
            parse("[parallelism]\ntensor_parallel_degree = 2\ncontext_parallel_degree = 2").config, 8) == 2);
}

TEST_CASE("features that are not available are refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"[optimizer]\nearly_step_in_backward = true", "inside the backward"},
      {"[training]\ndtype = \"bfloat16\"", "bfloat16 parameters"},
      {"[activation_checkpoint]\nmode = \"memory_budget\"", "memory budget"},
      {"[comm]\nmode = \"local_tensor\"", "fake_backend"},
      {"[memory_estimation]\nenable = true", "memory estimation"},
      {"[fault_tolerance]\nenable = true", "torchft"},
      {"[job]\ncustom_config_module = \"a.b\"", "import a module"},
      {"[experimental]\ncustom_import = \"a.b\"", "import a module"},
      {"[experimental]\ncustom_args_module = \"a.b\"", "import a module"},
  };
  for (const auto& [toml, text] : cases) CHECK_THAT(problem(toml), Contains(text));
}

TEST_CASE("what follows metrics.jsonl is refused without it") {
  for (const char* tracker : {"enable_wandb = true", "enable_mlflow = true", "alert_command = \"mail\""}) {
    const std::string toml = std::string("[metrics]\n") + tracker;
    CHECK(problem(toml).empty());
    CHECK_THAT(problem(toml + "\nenable_jsonl = false"), Contains("metrics.enable_jsonl = false"));
  }
}

TEST_CASE("every refusal says what to do instead") {
  for (const Feature* feature : features()) {
    CAPTURE(feature->key, feature->refusal);
    if (!feature->refusal.empty())
      CHECK_THAT(feature->refusal, Catch::Matches(".*; (choose|convert|keep|remove|set) .*"));
  }
}

TEST_CASE("float8 options that exclude each other are refused where float8 is on") {
  const std::string table = "[quantize.linear.float8]\n";
  const std::string on = "[model]\nconverters = [\"float8\"]\n" + table;
  const std::string rowwise = "recipe_name = \"rowwise\"\nenable_fsdp_float8_all_gather = true";
  const std::string alone = "precompute_float8_dynamic_scale_for_fsdp = true";
  CHECK_THAT(problem(on + rowwise), Contains("a scale for each row, which shards do not share"));
  CHECK_THAT(problem(on + alone), Contains("expected enable_fsdp_float8_all_gather = true too"));
  CHECK(problem(on + "recipe_name = \"tensorwise\"\nenable_fsdp_float8_all_gather = true\n" + alone).empty());
  CHECK(problem(table + rowwise).empty());  // the converter is not listed
}

TEST_CASE("keys of a feature that is off are kept") {
  const ResolvedConfig resolved = parse(
      "[checkpoint]\ncreate_seed_checkpoint = true\nload_step = 5\n"
      "[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n"
      "[parallelism]\nenable_async_tensor_parallel = true\npipeline_parallel_schedule = \"GPipe\"\n"
      "[activation_checkpoint]\nmemory_budget = 0.25\n[fault_tolerance]\ngroup_size = 2\n"
      "[profiling]\nprofile_freq = 1\nprofiler_warmup = 5\n[validation]\ndataset = \"c4\"\n");
  Problems found;
  check_config(resolved, ranks(2), found);
  CHECK(found.lines().empty());
  CHECK(resolved.config.checkpoint.load_step == 5);
  CHECK(resolved.config.activation_checkpoint.memory_budget == 0.25);
}

TEST_CASE("keys that tune Python are listed when they ask for something") {
  CHECK(keys_without_effect(parse("")).empty());
  CHECK(keys_without_effect(
            parse("[compile]\nenable = false\ncomponents = [\"model\"]\n[training]\ngc_freq = 50"))
            .empty());
  CHECK(keys_without_effect(parse("[training]\ngc_freq = 7\ndataloader.num_workers = 2\n"
                                  "[compile]\nenable = true\ncomponents = [\"loss\"]\n"
                                  "[validation]\ndataloader.num_workers = 2")) ==
        std::vector<std::string>{"training.gc_freq", "training.dataloader.num_workers", "compile.enable",
                                 "compile.components"});
}

TEST_CASE("a profiler cycle must hold its warm-up and its steps") {
  CHECK_THAT(problem("[profiling]\nenable_profiling = true\nprofile_freq = 3"),
             Contains("profiling.profile_freq = 3: expected at least profiler_active 1 + profiler_warmup 3"));
  CHECK(problem("[profiling]\nenable_profiling = true\nprofile_freq = 4").empty());
  CHECK_FALSE(problem("[profiling]\nenable_profiling = true\nprofiler_warmup = 9223372036854775807").empty());
}

TEST_CASE("validation counts sequences of all ranks or batches per rank") {
  CHECK(problem("[validation]\nsequences = 80").empty());
  CHECK(problem("[validation]\nsequences = 80\nsteps = -1").empty());
  CHECK(problem("[validation]\nsteps = 10").empty());
  CHECK_THAT(problem("[validation]\nsequences = 80\nsteps = 10"),
             Contains("job.toml:2:13: validation.sequences = 80: ") &&
                 Contains("steps = 10 (job.toml:3:9)") && Contains("--validation.sequences None"));
  Problems found;
  check_config(parse_config("[validation]\nsequences = 80", "job.toml",
                            {{"validation.sequences", "None"}, {"validation.steps", "10"}}),
               {}, found);
  CHECK(found.lines().empty());
}

TEST_CASE("the vocabulary must hold the tokenizer") {
  RunContext facts = model({.max_seq_len = 131072});
  facts.tokenizer_vocab_size = 2048;
  CHECK(problem("", facts).empty());
  facts.tokenizer_vocab_size = 128256;
  CHECK_THAT(problem("", facts),
             Contains("128256 entries, the model only 2048") && Contains("model.args.vocab_size = 128256"));
}

TEST_CASE("sequences must fit the positions of the model") {
  CHECK_THAT(problem("[model.args]\nmax_seq_len = 1024"),
             Contains("training.seq_len = 2048: expected at most model.args.max_seq_len = 1024"));
  CHECK_THAT(problem("[model.args]\nmax_seq_len = 2048\n[validation]\nenable = true\nseq_len = 4096"),
             Contains("validation.seq_len"));
}

TEST_CASE("sequences must fit the positions of a named flavour that no key changes") {
  CHECK(problem("[training]\nseq_len = 4096", model({.max_seq_len = 4096})).empty());
  CHECK_THAT(problem("[training]\nseq_len = 4097", model({.max_seq_len = 4096})),
             Contains("training.seq_len = 4097: expected at most the 4096 positions of llama3 debugmodel") &&
                 Contains("set model.args.max_seq_len = 4097"));
  CHECK(problem("[validation]\nseq_len = 8192", model({.max_seq_len = 4096})).empty());
}

TEST_CASE("tensor parallel ranks divide heads and sequence and each gets a part of everything") {
  const std::string two = "[parallelism]\ntensor_parallel_degree = 2";
  const std::string four = "[parallelism]\ntensor_parallel_degree = 4";
  models::ModelArgs odd{
      .vocab_size = 17, .attention = {.n_heads = 4, .n_kv_heads = 2}, .dense = {.hidden_dim = 25}};
  CHECK(problem(two, model(odd)).empty());
  CHECK_THAT(
      problem(four, model(odd)),
      Contains("job.toml:2:26: parallelism.tensor_parallel_degree = 4: expected a divisor of 4 heads and 2 "
               "key-value heads"));
  odd.attention.n_kv_heads = 4;
  CHECK(problem(four, model(odd)).empty());
  odd.vocab_size = 9;  // parts of 3
  CHECK_THAT(
      problem(four, model(odd)),
      Contains("parallelism.tensor_parallel_degree = 4: expected a degree that leaves every rank a part of "
               "the vocabulary's entries, which are 9: parts of 3 are 3; lower the degree"));
  odd.vocab_size = 17;
  odd.dense.hidden_dim = 3;
  CHECK_THAT(problem(four, model(odd)),
             Contains("the hidden width's columns, which are 3: parts of 1 are 3"));
  odd.dense.hidden_dim = 25;
  odd.experts.num_experts = 6;
  odd.experts.hidden_dim = 20;
  CHECK(problem(four, model(odd)).empty());
  odd.experts.hidden_dim = 18;
  CHECK_THAT(problem(four, model(odd)),
             Contains("parallelism.tensor_parallel_degree = 4: expected a divisor of the experts' hidden "
                      "width, which is 18"));
  CHECK_THAT(problem(four + "\n[training]\nseq_len = 10"),
             Contains("training.seq_len = 10: expected a multiple of 4"));
  CHECK_THAT(problem(two, ranks(3)), Contains("tensor 2 must be the 3 ranks of the job"));
}

TEST_CASE("keys of a dimension of parallelism without ranks for it are warned of") {
  CHECK(keys_of_parallelism_without_effect(parse("")).empty());
  CHECK(keys_of_parallelism_without_effect(parse("[parallelism]\nenable_async_tensor_parallel = false"))
            .empty());
  const std::string keys = "disable_loss_parallel = true\nenable_async_tensor_parallel = true";
  CHECK(keys_of_parallelism_without_effect(parse("[parallelism]\n" + keys)) ==
        std::vector<std::string>{
            "parallelism.disable_loss_parallel = true (job.toml:2:25) has no effect: "
            "parallelism.tensor_parallel_degree is 1",
            "parallelism.enable_async_tensor_parallel = true (job.toml:3:32) has no effect: "
            "parallelism.tensor_parallel_degree is 1"});
  CHECK(keys_of_parallelism_without_effect(parse(
            "[parallelism]\npipeline_parallel_schedule = \"GPipe\"\nexpert_tensor_parallel_degree = 8")) ==
        std::vector<std::string>{
            "parallelism.pipeline_parallel_schedule = \"GPipe\" (job.toml:2:30) has no effect: "
            "parallelism.pipeline_parallel_degree is 1",
            "parallelism.expert_tensor_parallel_degree = 8 (job.toml:3:33) has no effect: "
            "parallelism.expert_parallel_degree is 1"});
  CHECK(keys_of_parallelism_without_effect(parse("[parallelism]\ntensor_parallel_degree = 2\n" + keys))
            .empty());
}

TEST_CASE("what expert parallelism cannot do is refused by its key") {
  const std::string moe = "[model]\nname = \"deepseek_v3\"\n[parallelism]\n";  // debugmodel: 8 experts
  RunContext four = model(models::model_args("deepseek_v3", "debugmodel", {}));
  four.world_size = 4;
  const auto refused = [&](const std::string& keys) { return problem(moe + keys, four); };
  for (const char* works : {"2", "4", "2\ndata_parallel_replicate_degree = 2"})
    CHECK(refused(fmt::format("expert_parallel_degree = {}", works)).empty());
  CHECK_THAT(refused("expert_parallel_degree = 4\ndata_parallel_replicate_degree = 2"),
             Contains("parallelism.expert_parallel_degree = 4: expected a divisor of the 2 ranks of shard x "
                      "context x tensor"));
  CHECK_THAT(refused("expert_parallel_degree = 4\npipeline_parallel_degree = 2"),
             Contains("expert_parallel_degree = 4: expected a divisor of the 2 ranks"));
  four.world_size = 3;
  CHECK_THAT(refused("expert_parallel_degree = 3"), Contains("expected a divisor of the model's 8 experts"));
  four.world_size = 4;
  CHECK_THAT(refused("expert_parallel_degree = 2\nexpert_tensor_parallel_degree = 2"),
             Contains("parallelism.expert_tensor_parallel_degree = 2: expected 1, or tensor_parallel_degree, "
                      "which is 1"));
  CHECK_THAT(refused("expert_parallel_degree = 2\nexpert_parallel_comm_backend = \"deepep\""),
             Contains("expert_parallel_comm_backend = \"deepep\": DeepEP's kernels are not available; set "
                      "\"standard\""));
  // With tensor parallelism: experts complete on their ranks, or divided.
  const std::string two = "tensor_parallel_degree = 2\nexpert_parallel_degree = ",
                    each = "\nexpert_tensor_parallel_degree = ";
  for (const std::string& works : {two + "2", two + "4", two + "2" + each + "2"})
    CHECK(refused(works).empty());
  CHECK_THAT(refused(two + "4" + each + "2"),
             Contains("parallelism.expert_parallel_degree = 4: expected a degree that with "
                      "expert_tensor_parallel_degree 2 makes a divisor of the 4 ranks of shard x context x "
                      "tensor; lower one of both"));
  CHECK_THAT(
      refused("tensor_parallel_degree = 4\nexpert_parallel_degree = 2" + each + "2"),
      Contains("expert_tensor_parallel_degree = 2: expected 1, or tensor_parallel_degree, which is 4"));
  four.model->experts.hidden_dim = 3;
  CHECK(refused(two + "2").empty());
  CHECK_THAT(
      refused(two + "2" + each + "2"),
      Contains("parallelism.expert_tensor_parallel_degree = 2: expected a divisor of the experts' hidden "
               "width, which is 3; 1 leaves each expert complete on its rank"));
  four.model->experts.hidden_dim = 1;
  four.model->experts.num_shared_experts = 1;
  CHECK_THAT(refused(two + "2"), Contains("tensor_parallel_degree = 2: expected a degree that leaves every "
                                          "rank a part of the shared experts' columns, which are 1"));
}

TEST_CASE("FP8 experts are refused by names that match nothing and by widths") {
  models::ModelArgs args =
      models::model_args("deepseek_v3", "debugmodel", {});  // a dense layer, then experts
  const auto refused = [&](const std::string& kind, const std::string& keys, const std::string& more = "") {
    return problem(fmt::format("[model]\nconverters = [\"quantize.grouped_mm.{0}\"]\n"
                               "[quantize.grouped_mm.{0}]\n{1}\n{2}",
                               kind, keys, more),
                   model(args));
  };
  const std::string two = "[parallelism]\ntensor_parallel_degree = 2";
  for (const std::string kind : {"float8", "mx"}) {
    for (const char* works : {"experts", "moe", "layers.1.", "layers.5.moe.experts"})
      CHECK(refused(kind, fmt::format("fqns = [\"{}\"]", works)).empty());
    CHECK_THAT(refused(kind, ""),
               Contains(fmt::format("quantize.grouped_mm.{}.fqns = []: expected parts of", kind)) &&
                   Contains("layers.1.moe.experts to layers.5.moe.experts"));
    CHECK_THAT(refused(kind, "fqns = [\"experts\", \"layers.0.\"]"),
               Contains(".fqns") && Contains("\"layers.0.\" is part of no experts' name"));
    CHECK_THAT(problem(fmt::format("[model]\nconverters = [\"quantize.grouped_mm.{}\"]", kind),
                       model(models::model_args("llama3", "debugmodel", {}))),
               Contains("the model has no experts"));
  }
  args.experts.hidden_dim = 16;
  CHECK(refused("float8", "fqns = [\"experts\"]").empty());
  CHECK_THAT(refused("mx", "fqns = [\"experts\"]"),
             Contains("experts of widths 256 and 16: expected multiples of 32"));
  CHECK_THAT(refused("float8", "fqns = [\"experts\"]", two),
             Contains("experts of widths 256 and 16, the second one in 2 parts: expected multiples of 16"));
  // With expert parallelism an expert is complete on its rank, or divided as its own degree says.
  const auto with_ranks = [&](const std::string& of_each) {
    return problem(
        "[model]\nname = \"deepseek_v3\"\nconverters = [\"quantize.grouped_mm.float8\"]\n"
        "[quantize.grouped_mm.float8]\nfqns = [\"experts\"]\n" +
            two + "\nexpert_parallel_degree = 2\nexpert_tensor_parallel_degree = " + of_each,
        model(args));
  };
  CHECK(with_ranks("1").empty());
  CHECK_THAT(with_ranks("2"), Contains("256 and 16, the second one in 2 parts: expected multiples of 16"));
  args.experts.hidden_dim = 32;
  CHECK(refused("float8", "fqns = [\"experts\"]", two).empty());
  args.dim = 264;
  CHECK_THAT(refused("float8", "fqns = [\"experts\"]"),
             Contains("experts of widths 264 and 32: expected multiples of 16"));
}

TEST_CASE("FP8 and MXFP8 in one job are refused, as torchtitan does") {
  for (const char* both :
       {"linear.float8\", \"quantize.linear.mx", "linear.float8\", \"quantize.grouped_mm.mx",
        "linear.mx\", \"quantize.grouped_mm.float8", "grouped_mm.mx\", \"quantize.grouped_mm.float8"})
    CHECK_THAT(problem(fmt::format("[model]\nconverters = [\"quantize.{}\"]", both)),
               Contains("expected FP8 (quantize.linear.float8, quantize.grouped_mm.float8) or MXFP8"));
  CHECK(problem("[model]\nconverters = [\"quantize.linear.mx\", \"quantize.grouped_mm.mx\"]").empty());
}

TEST_CASE("expert parallelism has no effect on a dense model, which is said once") {
  const ResolvedConfig dense = parse("[parallelism]\nexpert_parallel_degree = 3");
  CHECK(keys_of_parallelism_without_effect(dense) ==
        std::vector<std::string>{
            "parallelism.expert_parallel_degree = 3 (job.toml:2:26) has no effect: the model "
            "has no experts"});
  CHECK(problem("[parallelism]\nexpert_parallel_degree = 3", ranks(4)).empty());
  CHECK_FALSE(divides_experts(dense.config));
  CHECK(divides_experts(
      parse("[model]\nname = \"deepseek_v3\"\n[parallelism]\nexpert_parallel_degree = 2").config));
}

TEST_CASE("sequences are divided by tensor and context parallelism") {
  const std::string two = "[parallelism]\ncontext_parallel_degree = 2\n";
  CHECK(problem(two + "[training]\nseq_len = 12", ranks(2)).empty());
  CHECK_THAT(problem(two + "[training]\nseq_len = 10"),
             Contains("training.seq_len = 10: expected a multiple of 4 (2 chunks x tensor 1 x context 2), "
                      "such as 8 or 12"));
  CHECK_THAT(
      problem(two + "tensor_parallel_degree = 3\n[training]\nseq_len = 4\n[validation]\nenable = true\n"
                    "seq_len = 12"),
      Contains(
          "training.seq_len = 4: expected a multiple of 12 (2 chunks x tensor 3 x context 2), such as 12"));
  CHECK_THAT(problem(two + "[validation]\nenable = true\nseq_len = 30"), Contains("validation.seq_len = 30"));
  CHECK_THAT(problem(two, ranks(3)), Contains("context 2 x tensor 1 must be the 3 ranks"));
}

TEST_CASE("what context parallelism cannot do is refused by its key, and without effect at degree 1") {
  const std::string two = "[parallelism]\ncontext_parallel_degree = 2\n",
                    ring = "context_parallel_rotate_method = \"alltoall\"";
  CHECK_THAT(problem(two + "context_parallel_load_balancer = \"ptrr\""),
             Contains("parallelism.context_parallel_load_balancer = \"ptrr\"") &&
                 Contains("flex attention") && Contains("set \"headtail\""));
  CHECK(problem(two + ring).empty());
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { parse(two + "context_parallel_rotate_method = \"heads\""); }),
             Contains("\"heads\"") && Contains("\"allgather\""));
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { parse(two + "context_parallel_rotate_method = \"ring\""); }),
             Contains("job.toml:3:34") && Contains("\"alltoall\" passes keys and values round in a ring"));
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { parse(two + "context_parallel_load_balancer = \"\""); }),
             Contains("context_parallel_load_balancer") && Contains("\"headtail\""));
  CHECK(problem("[parallelism]\n" + ring).empty());
  CHECK(keys_of_parallelism_without_effect(parse("[parallelism]\n" + ring)) ==
        std::vector<std::string>{
            "parallelism.context_parallel_rotate_method = \"alltoall\" (job.toml:2:34) has no effect: "
            "parallelism.context_parallel_degree is 1"});
}

TEST_CASE("settings of an update that are 0, 1 or infinite in fp32 are refused") {
  CHECK(problem("[optimizer]\neps = 1e-30\nbeta1 = 0.9999999\nbeta2 = 0.9999999\nlr = 1e38").empty());
  CHECK_THAT(problem("[optimizer]\neps = 1e-50"),
             Contains("optimizer.eps = 1e-50: expected at least 1.2e-38"));
  CHECK_THAT(problem("[optimizer]\nbeta1 = 0.99999999"),
             Contains("optimizer.beta1 = 0.99999999: expected at most 0.9999999"));
  CHECK_THAT(problem("[optimizer]\nbeta2 = 0.99999999"), Contains("optimizer.beta2"));
  CHECK_THAT(problem("[optimizer]\nlr = 1e39"), Contains("optimizer.lr = 1e+39: expected at most 3.4e38"));
  CHECK_THAT(problem("[optimizer]\nweight_decay = 1e300"), Contains("optimizer.weight_decay"));
  CHECK_THAT(problem("[ema]\nenable = true\ndecay = 0.99999999"), Contains("ema.decay = 0.99999999"));
  CHECK_THAT(problem("[training]\nmax_norm = 1e-50"),
             Contains("training.max_norm = 1e-50: expected at least 1.2e-38"));
  CHECK(problem("[training]\nmax_norm = inf").empty());
}

TEST_CASE("only the default corpus needs no path") {
  CHECK(missing_data("[training]\ndataset = \"c4_test\"").empty());
  CHECK_THAT(missing_data("[training]\ndataset = \"c4\""),
             Contains("job.toml:2:11: training.dataset = \"c4\": expected training.dataset_path") &&
                 Contains("default corpus"));
  CHECK_FALSE(missing_data("[training]\ndataset = \"jsonl\"").empty());
  CHECK(missing_data("[training]\ndataset = \"c4\"\ndataset_path = \"/\"").empty());
  CHECK(uses_default_corpus(JobConfig()));
  CHECK_FALSE(uses_default_corpus(parse("[training]\ndataset_path = \"x\"").config));
}

TEST_CASE("validation reads the held-out novel beside the default corpus and a path otherwise") {
  CHECK(missing_data("[validation]\nenable = true").empty());
  const std::string other = "[training]\ndataset_path = \"/\"\n";
  CHECK(missing_data(other + "[validation]\nenable = true\ndataset = \"c4_test\"").empty());
  CHECK_THAT(missing_data(other + "[validation]\nenable = true"),
             Contains("validation.dataset = \"c4_validation\": expected validation.dataset_path"));
  CHECK(missing_data(other + "[validation]\nenable = true\ndataset_path = \"/\"").empty());
}

TEST_CASE("keys are compared with each other although no data are given") {
  CHECK(problem("[training]\ndataset = \"c4\"\n[validation]\nenable = true").empty());
}

TEST_CASE("inputs are looked for as given and then below the base folder") {
  const test::TemporaryFolder folder;
  fs::create_directories(folder.path() / "assets/tokenizer");
  write_file_atomic(folder.path() / "assets/part1.jsonl", "{}");
  CHECK(resolve_input("./assets/tokenizer", folder.path()) == folder.path() / "assets/tokenizer");
  CHECK(resolve_input("assets/*.jsonl", folder.path()) == folder.path() / "assets/*.jsonl");
  CHECK(resolve_input("no/such", folder.path()) == "no/such");
  CHECK(resolve_input("/no/such", folder.path()) == "/no/such");
  CHECK(resolve_input(folder.path().string(), "/") == folder.path());

  const auto input_problems = [&](const std::string& toml) {
    Problems found;
    for (const char* key : {"model.hf_assets_path", "training.dataset_path", "validation.dataset_path"})
      check_input(parse(toml), key, folder.path(), found);
    return found.lines();
  };
  const std::string tokenizer = "[model]\nhf_assets_path = \"assets/tokenizer\"\n";
  CHECK(input_problems(tokenizer).empty());
  CHECK(input_problems(tokenizer + "[training]\ndataset_path = \"assets/part?.jsonl\"").empty());
  const auto lines = input_problems(
      "[model]\nhf_assets_path = \"none\"\n[training]\ndataset_path = \"assets/*.gz\"\n[validation]\nenable "
      "= true\ndataset_path = \"no\"");
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], Contains("job.toml:2:18: model.hf_assets_path = \"none\": no such file or folder"));
  folder.write("mega.idx", "");
  CHECK(input_problems(tokenizer + "[training]\ndataset_path = \"mega\"").empty());
  CHECK(resolve_input("mega", folder.path()) == folder.path() / "mega");
}

TEST_CASE("a configuration is named by its path or by the name of a preset") {
  const test::TemporaryFolder folder;
  folder.write("configs/small_model.toml", "");
  folder.write("configs/large_model.toml", "");
  const fs::path base = folder.path(), small = base / "configs/small_model.toml";
  CHECK(config_file("small_model", base) == small);
  CHECK(config_file("small_model.toml", base) == small);
  CHECK(config_file("./small_model", base) == "./small_model");
  CHECK(config_file(small, "/no/such") == small);
  CHECK_THROWS_WITH(config_file("smal_model", base),
                    Contains("smal_model: there is no such file, and no preset of that name; did you mean "
                             "small_model?; presets: large_model, small_model"));
  CHECK_THROWS_WITH(config_file("small", base), Contains("did you mean small_model?"));
  CHECK_THROWS_WITH(config_file("nothing.toml", base), Contains("of that name; presets: large_model"));
}

TEST_CASE("a configuration that is not valid is refused with all problems in one error") {
  try {
    require_valid_config(parse("[checkpoint]\nenable = true\nload_only = true\ncreate_seed_checkpoint = "
                               "true\n[training]\ndataset = \"c4\"\nglobal_batch_size = 9\n"),
                         ranks(2), HYPERION_SOURCE_DIR);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK_THAT(error.what(), Contains("The configuration cannot be run: 4 problems") &&
                                 Contains("checkpoint.create_seed_checkpoint") &&
                                 Contains("training.dataset") && Contains("training.global_batch_size"));
  }
}

}  // namespace hyperion::config
