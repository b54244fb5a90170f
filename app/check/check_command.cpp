#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "app/check/check_table.h"
#include "app/commands.h"
#include "app/check/memory_texts.h"
#include "app/check/muon_text.h"
#include "app/plan/plan_text.h"
#include "base/counted.h"
#include "base/device/device.h"
#include "base/durable.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "data/sources.h"
#include "data/token_shards.h"
#include "models/description.h"
#include "models/flavors/registry.h"
#include "trainer/build/model_and_optimizer.h"
#include "trainer/build/peak_memory.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/checkpointing/checkpointer.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/batch_ramp.h"
#include "trainer/config/fit_ranks.h"
#include "trainer/config/input_path.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/config/writers_choice.h"
#include "trainer/data/source_report.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/metrics/flops.h"
#include "trainer/plan/group_report.h"
#include "trainer/plan/memory_needs.h"
#include "trainer/plan/sharding_advice.h"
#include "trainer/preflight.h"
#include "trainer/runtime/runtime.h"
#include "trainer/training_state.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

// The memory of a rank, as far as the command line and this host tell.
struct KnownMemory {
  bool on_gpu = true;
  std::optional<MemoryLimit> gpu{};           // which the rank has to itself
  std::optional<trainer::RankMemory> host{};  // where the ranks run here
};

KnownMemory known_memory(const CommandLine& line, const config::JobConfig& config) {
  if (line.gpu_memory > 0) return {.gpu = MemoryLimit{line.gpu_memory * (1 << 30), "--gpu-memory"}};
  KnownMemory known{.on_gpu = environment_variable("HYPERION_DEVICE") != "cpu"};
  const DriverProbe driver = known.on_gpu ? probe_driver() : DriverProbe();
  if (driver.memory > 0)
    known.gpu = MemoryLimit{static_cast<double>(driver.memory),
                            "the memory of this host's GPU (--gpu-memory GB for another)"};
  const bool has_device = known.gpu || !known.on_gpu;
  if (!has_device || (line.ranks > 0 && line.ranks > driver.devices)) return known;
  const bool dry_run = config::is_dry_run(config);
  const int ranks = dry_run          ? 1
                    : line.ranks > 0 ? static_cast<int>(line.ranks)
                                     : trainer::job_environment(config).local_world_size;
  known.host = trainer::rank_memory(at::kCPU, ranks);
  if (dry_run) known.host->threads = 1;
  return known;
}

// Compares what a rank needs with what is known of the memory that it has, as a job does at its start.
CheckTable::Verdict check_memory_of_rank(const config::ResolvedConfig& resolved,
                                         const models::ModelArgs& model, const parallel::Mesh& mesh,
                                         const KnownMemory& known,
                                         const std::optional<trainer::PipelinePlan>& pipeline) {
  const config::JobConfig& config = resolved.config;
  const trainer::JobSize size = trainer::largest_replayed_size(config, model, mesh, pipeline, known.on_gpu);
  trainer::RankMemory memory{.host = {std::numeric_limits<double>::infinity(), "the host's memory"}};
  if (known.host) memory = *known.host;
  memory.device = known.gpu;
  if (known.gpu || known.host) trainer::require_memory(resolved, size, memory);

  const trainer::MemoryNeeds needs = trainer::memory_needs(config, size, known.on_gpu, memory.threads);
  const bool needs_host = !known.on_gpu || needs.keeps_state_in_host();
  std::string text =
      describe_needs(needs, known.on_gpu,
                     !pipeline ? " per rank at least"
                               : " per rank (of the pipeline's, the one that needs the most) at least");
  if (needs_host) {
    const MemoryLimit here = known.host ? memory.host : host_memory();
    const std::string limit = fmt::format("{} is {}", here.what, readable_bytes(here.bytes));
    text += known.host ? "; " + limit
                       : fmt::format("; a host needs that for each of its ranks (not compared; {})", limit);
  }
  text += known.gpu
              ? fmt::format("; {} is {}", known.gpu->what, readable_bytes(known.gpu->bytes)) +
                    describe_expert_rows(size.expert_rows, trainer::total(needs.device), known.gpu->bytes) +
                    describe_communicators(size.communicators, config.comm.pipeline_max_ctas,
                                           trainer::total(needs.device), known.gpu->bytes)
              : "; not compared with a GPU's memory: none is in use here, and --gpu-memory is not given";
  const bool compared = (known.gpu || !known.on_gpu) && (known.host || !needs_host);
  return {compared ? "ok" : "-", text};
}

std::string describe_context(const config::JobConfig& config, const models::ModelArgs& model,
                             const parallel::Mesh& mesh) {
  const auto& degrees = config.parallelism;
  const int ranks = mesh.degree(parallel::MeshDim::kCp), tensor = mesh.degree(parallel::MeshDim::kTp);
  const trainer::ContextTraffic traffic = trainer::context_traffic(config, model, mesh);
  return fmt::format(
      "each sequence on {} ranks{}, {}; keys and values {}: in a block of a microbatch each "
      "rank sends {} forward and {} backward, {} per step",
      ranks, tensor > 1 ? fmt::format(" ({} of {} neighbours)", ranks, ranks * tensor) : "",
      degrees.context_parallel_load_balancer ? "two chunks each (headtail)" : "one part each (no balancer)",
      !config::passes_keys_in_ring(config) ? "are gathered (allgather)"
      : models::describe_model(model).windows() > 0
          ? "go round (alltoall), in layers with a window are gathered"
          : "go round (alltoall)",
      readable_bytes(traffic.forward), readable_bytes(traffic.backward), readable_bytes(traffic.step));
}

// Makes a file in the folder and removes it, with the folders that were missing.
std::string probe_writable(const fs::path& folder) {
  std::vector<fs::path> made;  // the deepest first
  std::error_code ignored;
  for (fs::path at = fs::absolute(folder).lexically_normal();
       at.has_relative_path() && !fs::exists(at, ignored); at = at.parent_path())
    if (at.has_filename()) made.push_back(at);
  const fs::path file = folder / fmt::format(".hyperion-check-{}", ::getpid());
  const auto remove = [&] {
    fs::remove(file, ignored);
    for (const fs::path& path : made) fs::remove(path, ignored);
  };
  fs::space_info space{};
  try {
    make_folders(folder);
    write_file_atomic(file, "");
    space = fs::space(folder);
  } catch (const std::exception& error) {
    remove();
    throw_pre_checkpoint("nothing can be written there: {}", error.what());
  }
  remove();
  return fmt::format("{}: {}, {} free", folder.string(), made.empty() ? "can be written" : "can be made",
                     readable_bytes(static_cast<double>(space.available)));
}

// The state of rank 0 in shapes without memory, and the groups it is sharded over.
struct StateShapes {
  StateShapes(const checkpointing::ResumePlan& plan, const config::JobConfig& configured,
              const models::ModelArgs& args, const parallel::Mesh& mesh,
              const parallel::Environment& environment, data::DataLoader& loader,
              const trainer::Pipeline* pipeline)
      : groups(mesh, environment, {.backend = parallel::CommBackend::kFake}),
        model(trainer::make_model_and_optimizer(
            args, plan.config,
            {.mesh = mesh,
             .rank = 0,
             .groups = groups,
             .device = at::kCPU,
             .float8 = {.cpu = false, .compute_capability = 100, .name = "a GPU"},
             .pipeline = pipeline,
             .without_memory = true})) {
    for (const std::string& warning : model.float8.warnings) log_warning("{}", warning);
    config::JobConfig::Ema averages = plan.config.ema;
    averages.device = config::EmaDevice::kSame;  // no memory, as the weights
    if (averages.enable) model.ema = std::make_unique<optim::Ema>(model.parameters, averages);
    components = trainer::state_components({model, mesh, 0, at::kCPU, state, loader, plan, configured});
    for (const auto& component : components) parts.push_back(component.get());
  }

  parallel::ProcessGroups groups;
  trainer::ModelAndOptimizer model;
  checkpointing::TrainState state;
  trainer::StateComponents components;
  std::vector<checkpoint::StateComponent*> parts;
};

std::string describe_start(const config::JobConfig& config,
                           const std::optional<checkpointing::FinishedRun>& finished,
                           const checkpointing::ChosenCheckpoint* chosen, int64_t step) {
  const int64_t last = config.training.steps;
  if (config.checkpoint.create_seed_checkpoint) return "write the initial weights as step-0 and end";
  if (finished)
    return fmt::format("train nothing: {} holds the weights after step {}, and training.steps = {}",
                       finished->path.string(), finished->step, last);
  if (chosen == nullptr) return fmt::format("train steps 1 to {} from random weights", last);
  const std::string path = chosen->path.string();
  if (step >= last)
    return fmt::format("train nothing: {} is at step {}, and training.steps = {}", path, step, last);
  return fmt::format("{} {}, then train steps {} to {}",
                     chosen->source == checkpointing::LoadSource::kOwn ? "resume from" : "load", path,
                     step + 1, last);
}

std::string describe_model(const config::JobConfig::Model& named, const models::ModelArgs& model) {
  const auto problem = hugging_face::export_problem(model);
  const models::ParameterCounts counts = models::count_parameters(model);
  return fmt::format(
      "{} {}, {} parameters{}{}", named.name, named.flavor, format_count(static_cast<uint64_t>(counts.total)),
      model.experts.are_present()
          ? fmt::format(", {} of them active for a token", format_count(static_cast<uint64_t>(counts.active)))
          : "",
      problem ? "; it cannot be exported to Hugging Face: " + problem->text : "");
}

void require_input(const config::ResolvedConfig& resolved, const char* key) {
  config::Problems problems;
  config::check_input(resolved, key, config::install_root(), problems);
  problems.throw_if_any("The configuration cannot be run");
}

// A job's checks, in the job's order: where several are wrong, the code is that of the first.
class JobCheck {
 public:
  explicit JobCheck(const CommandLine& line) : line_(line), table_(line.plan.json) {}

  void run() {
    const DeferredWarnings held;
    check_configuration();
    check_data();
    check_memory();
    check_start();
    table_.finish();
  }
  void throw_if_any_failed() const { table_.throw_if_any_failed(); }

 private:
  const config::JobConfig& config() const { return resolved_->config; }

  void check_configuration() {
    table_.check("configuration", {}, [&] {
      resolved_ = config::load_config(line_.config_file, line_.overrides);
      config::expand_dump_folder(*resolved_);
      for (const std::string& warning : resolved_->warnings) log_warning("{}", warning);
      for (const std::string& warning : config::keys_of_parallelism_without_effect(*resolved_))
        log_warning("{}", warning);
      hugging_face::resolve_hf_model(*resolved_, config::install_root());
      const int64_t ranks = line_.ranks > 0 ? line_.ranks : trainer::job_environment(config()).world_size;
      environment_.world_size = static_cast<int>(ranks);
      environment_.local_world_size = trainer::ranks_of_node(environment_.world_size);
      config::FittedConfig fitted = config::fit_to_ranks(*resolved_, ranks);
      if (!fitted.change.empty()) log_warning("{}", fitted.change);
      resolved_ = std::move(fitted.resolved);
      model_ = trainer::job_model(config());
      facts_ = trainer::run_facts(model_, environment_.world_size, environment_.local_world_size);
      trainer::check_keys(*resolved_, facts_);
      mesh_.emplace(trainer::mesh_config(config(), environment_.local_world_size), environment_.world_size);
      return line_.config_file;
    });
    table_.check("model", {"configuration"}, [&] {
      table_.add_facts("model",
                       {{"parameters", static_cast<double>(models::count_parameters(model_).total)},
                        {"flops_per_token", metrics::flops_per_token_causal(models::describe_model(model_),
                                                                            config().training.seq_len)}});
      return describe_model(config().model, model_);
    });
    if (facts_.model)
      for (const std::string& line : trainer::describe_groups(config().optimizer, model_))
        table_.print_row("optimizer", "-", line);
    table_.check("ranks", {"configuration"}, [&] {
      for (const std::string& warning :
           trainer::sharding_advice(config(), model_, *mesh_, environment_.local_world_size))
        log_warning("{}", warning);
      if (const std::string warning = trainer::dry_run_warning(config(), environment_); !warning.empty())
        log_warning("{}", warning);
      return mesh_->describe();
    });
    table_.check("batch", {"configuration"}, [&] {
      return config::describe_batch(config().training, mesh_->degree(parallel::MeshDim::kBatch));
    });
    if (!resolved_) return;
    if (config().parallelism.context_parallel_degree > 1)
      table_.check(
          "context", {"model", "ranks", "batch"}, [&] { return describe_context(config(), model_, *mesh_); },
          "-");
    if (config().parallelism.pipeline_parallel_degree > 1) check_pipeline();
    if (config().optimizer.name == config::OptimizerName::kMuon)
      table_.check(
          "muon", {"model", "ranks", "pipeline"}, [&] { return check_muon(); }, "-");
    if (const std::vector<std::string> unused = config::keys_without_effect(*resolved_); !unused.empty())
      table_.print_row("without effect", "-",
                       fmt::format("{} (keys that configure Python)", fmt::join(unused, ", ")));
  }

  // Describes the work of the fullest owner, in a pipeline that of all its ranks.
  std::string check_muon() {
    const models::ModelDescription model = models::describe_model(model_);
    std::vector<std::vector<trainer::ModelStage>> shares = {{trainer::all_units(model)}};
    if (pipeline_) shares = pipeline_->shares;
    std::optional<trainer::MuonWork> most;
    for (const std::vector<trainer::ModelStage>& stages : shares)
      if (const auto work = trainer::muon_work(config(), model, *mesh_, stages);
          work && (!most || work->flops > most->flops))
        most = work;
    if (!most) return "groups give every matrix to AdamW: nothing is multiplied or exchanged";
    table_.add_facts("muon", muon_facts(*most));
    return describe_muon(*most);
  }

  void check_pipeline() {
    table_.check("pipeline", {"model", "ranks", "batch"}, [&] {
      pipeline_ = trainer::job_pipeline(config(), model_, *mesh_);
      for (const std::string& warning : pipeline_->warnings) log_warning("{}", warning);
      return pipeline_->text;
    });
    if (!pipeline_) return;
    const models::ModelDescription model = models::describe_model(model_);
    for (size_t rank = 0; rank < pipeline_->ranks.size(); ++rank) {
      const trainer::PipelinePlan::Rank& one = pipeline_->ranks[rank];
      const KnownMemory known = known_memory(line_, config());
      const trainer::JobSize size =
          *trainer::replayed_size({config(), model_, model, *mesh_, &*pipeline_}, rank, known.on_gpu);
      const int threads = known.host ? known.host->threads : 1;
      table_.print_row(
          fmt::format("pp rank {}", rank), "-",
          fmt::format(
              "{}: {} parameters, at most {} kept; at least {}", one.stages,
              format_count(static_cast<uint64_t>(one.parameters)),
              counted(one.max_in_flight, "microbatch", "microbatches"),
              describe_needs(trainer::memory_needs(config(), size, known.on_gpu, threads), known.on_gpu)));
    }
  }

  // Checks that need it run despite wrong keys, if the configuration is readable.
  std::vector<std::string> readable_keys() const {
    return resolved_ ? std::vector<std::string>() : std::vector<std::string>{"configuration"};
  }

  // Skips a check if the configuration itself could not be read.
  void require_configuration() const {
    if (table_.failed_or_skipped("configuration")) throw SkippedCheck{"configuration"};
  }

  void check_data() {
    table_.check("tokenizer", readable_keys(), [&] {
      require_input(*resolved_, "model.hf_assets_path");
      data_ = trainer::checked_tokenizer(
          *resolved_, table_.failed_or_skipped("configuration") ? config::RunContext() : facts_);
      return fmt::format("{}: {} entries", data_->tokenizer_path,
                         format_count(static_cast<uint64_t>(data_->tokenizer->vocab_size())));
    });
    table_.check("training data", readable_keys(), [&] {
      require_input(*resolved_, "training.dataset_path");
      require_configuration();
      trainer::check_training_documents(config());
      // A job reads tokens in the order of its shuffle and cannot compare them with a checksum.
      const std::vector<data::SourceOptions> sources = trainer::training_data(config());
      for (const data::SourceOptions& source : sources)
        for (const data::CorpusFile& file : data::find_corpus(source.path, source.key))
          if (file.format == data::CorpusFormat::kTokenShard) data::ShardSource(file.path).verify();
      loader_ = trainer::training_loader(config(), tokenizer(), loader_context());
      return config().training.sources.empty() ? trainer::describe_files(sources.front())
                                               : counted(sources.size(), "source");
    });
    if (resolved_ && !config().training.sources.empty() && loader_) check_sources();
    if (resolved_ && config().validation.enable)
      table_.check("validation data", readable_keys(), [&] {
        require_input(*resolved_, "validation.dataset_path");
        require_configuration();
        trainer::check_validation_documents(config());
        trainer::validation_loaders(config(), tokenizer(), loader_context());
        std::string text;
        for (const data::SourceOptions& source : trainer::validation_data(config()))
          text += (text.empty() ? "" : "; ") + (source.name.empty() ? "" : source.name + ": ") +
                  trainer::describe_files(source);
        return text;
      });
  }

  // A row for each source of the training data.
  void check_sources() {
    const int64_t ranks = mesh_->degree(parallel::MeshDim::kBatch);
    const auto& training = config().training;
    const config::BatchSchedule batches(training, ranks);
    for (const auto& [name, text] :
         trainer::source_table(config(), *loader_, *data_->tokenizer, {.batches = batches}))
      table_.print_row("source " + name, "-", text);
  }

  void check_memory() {
    std::vector<std::string> needs = {"configuration"};
    if (resolved_ && config().parallelism.pipeline_parallel_degree > 1) needs.emplace_back("pipeline");
    table_.check_with_verdict("memory", needs, [&] {
      return check_memory_of_rank(*resolved_, model_, *mesh_, known_memory(line_, config()), pipeline_);
    });
    if (resolved_ && !known_memory(line_, config()).on_gpu) return;
    table_.check(
        "predicted", {"memory"},
        [&] {
          return describe_prediction(config(), model_,
                                     {.gpus = environment_.world_size,
                                      .card = known_card(line_.plan.gpu),
                                      .cluster = {.gpus_per_node = environment_.local_world_size}});
        },
        "-");
  }

  const trainer::DataSetup& tokenizer() const {
    if (table_.failed_or_skipped("tokenizer")) throw SkippedCheck{"tokenizer"};
    return *data_;
  }
  const checkpointing::ChosenCheckpoint* chosen() const {
    return start_.checkpoint ? &*start_.checkpoint : nullptr;
  }
  trainer::LoaderContext loader_context() const { return trainer::loader_context(*mesh_, 0, seed(), model_); }
  // An unset seed is drawn at the start and makes no difference here.
  uint64_t seed() const { return static_cast<uint64_t>(config().debug.seed.value_or(0)); }

  void check_start() {
    table_.check("dump folder", readable_keys(), [&] { return probe_writable(config().job.dump_folder); });
    table_.check("checkpoints", {"configuration"}, [&] { return find_checkpoint(); });
    table_.check(
        "writers", {"configuration"}, [&] { return describe_writers(); }, "-");
    table_.check("settings", {"checkpoints", "tokenizer", "training data"}, [&] {
      plan_ = trainer::plan_run(*resolved_, model_, *mesh_, seed(), loader_->initial_state(),
                                trainer::job_record(*resolved_, *data_), chosen());
      for (const std::string& warning : plan_->warnings) log_warning("{}", warning);
      if (trainer::keeps_saved_values(config(), *plan_)) follow_plan();
      const auto& curve = plan_->config.lr_scheduler;
      const auto& batch = plan_->config.training;
      return fmt::format(
          "{}{}; learning-rate curve of {} steps, warm-up {}",
          chosen() == nullptr ? "as configured" : "the configured ones and the checkpoint's go together",
          batch.global_batch_size != config().training.global_batch_size
              ? ", with the checkpoint's batch: " +
                    config::describe_batch(batch, mesh_->degree(parallel::MeshDim::kBatch))
              : "",
          *curve.total_steps, std::min(curve.warmup_steps, *curve.total_steps));
    });
    table_.check("state", {"settings", "pipeline"}, [&] { return describe_state(); });
    if (state_)
      for (const std::string& line : state_->model.float8.log) table_.print_row("products", "-", line);
    table_.check(
        "a start would", {"memory", "dump folder", "validation data", "state"},
        [&] {
          const int64_t step = state_->state.step, last = config().training.steps;
          if (const std::string warning =
                  checkpointing::explain_newer_checkpoints(start_, checkpoint_folder(), step, last);
              step < last && !warning.empty())
            log_warning("{}", warning);
          const bool loads_weights =
              chosen() != nullptr && chosen()->components.contains(checkpoint::kModelComponent);
          for (const std::string& warning :
               trainer::start_warnings(plan_->config, model_, loads_weights || start_.finished))
            log_warning("{}", warning);
          return describe_start(plan_->config, start_.finished, chosen(), step);
        },
        "-");
  }

  // As a start does with saved values (trainer/job.h).
  void follow_plan() {
    pipeline_ = trainer::job_pipeline(plan_->config, model_, *mesh_);
    check_memory_of_rank(checkpointing::followed_config(*resolved_, plan_->config), model_, *mesh_,
                         known_memory(line_, config()), pipeline_);
    loader_ = trainer::training_loader(plan_->config, *data_, loader_context());
  }

  checkpoint::CheckpointFolder checkpoint_folder() const {
    return checkpoint::CheckpointFolder(fs::path(config().job.dump_folder) / config().checkpoint.folder);
  }

  std::string find_checkpoint() {
    if (!config().checkpoint.enable) return "off (checkpoint.enable = false): nothing is loaded or saved";
    SoloCoordinator alone;
    start_ = checkpointing::choose_start(config(), checkpoint_folder(), config::install_root(), alone);
    if (!start_.checkpoint)
      return fmt::format("{}: none to resume from", checkpoint_folder().path().string());
    if (data_)
      trainer::require_checkpoint_of_job(*resolved_, model_, trainer::job_record(*resolved_, *data_),
                                         *start_.checkpoint);
    return start_.checkpoint->path.string();
  }

  std::string describe_writers() const {
    if (!config().checkpoint.enable || config().checkpoint.load_only) return "nothing is saved";
    return config::choose_writers(config().checkpoint.writers, environment_.world_size,
                                  mesh_->degree(parallel::MeshDim::kDpReplicate))
        .text;
  }

  std::string describe_state() {
    state_ = std::make_unique<StateShapes>(*plan_, config(), model_, *mesh_, environment_, *loader_,
                                           pipeline_ ? &pipeline_->pipeline : nullptr);
    if (!start_.checkpoint) return "new weights and optimizer states";
    const auto items =
        checkpointing::plan_component_load(*start_.checkpoint, state_->parts, plan_->config, model_);
    checkpointing::require_equal_aliases(*start_.checkpoint, items, plan_->config);
    checkpointing::load_values(*start_.checkpoint, state_->parts);
    return fmt::format(
        "{} tensors fit by name, shape and type; their bytes are compared when they are loaded",
        items.size());
  }

  const CommandLine& line_;
  CheckTable table_;
  std::optional<config::ResolvedConfig> resolved_;
  parallel::Environment environment_;  // of rank 0
  models::ModelArgs model_;
  config::RunContext facts_;
  std::optional<parallel::Mesh> mesh_;
  std::optional<trainer::PipelinePlan> pipeline_;
  std::optional<trainer::DataSetup> data_;
  std::unique_ptr<data::DataLoader> loader_;
  checkpointing::StartingPoint start_;
  std::optional<checkpointing::ResumePlan> plan_;
  std::unique_ptr<StateShapes> state_;
};

}  // namespace

ExitCode check_command(const CommandLine& line) {
  if (std::getenv("HYPERION_LOG_LEVEL") == nullptr) spdlog::set_level(spdlog::level::warn);
  JobCheck job(line);
  job.run();
  job.throw_if_any_failed();
  return ExitCode::kOk;
}

}  // namespace hyperion::app
