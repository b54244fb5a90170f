#include "trainer/check_command.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/files.h"
#include "base/log.h"
#include "models/registry.h"
#include "trainer/checkpointing.h"
#include "trainer/config/expand.h"
#include "trainer/data/sources.h"
#include "trainer/float8_setup.h"
#include "trainer/fsdp_model.h"
#include "trainer/hf_model.h"
#include "trainer/metrics/step_line.h"
#include "trainer/options.h"
#include "trainer/preflight.h"
#include "trainer/runtime.h"
#include "trainer/size_estimate.h"
#include "trainer/stored_weights.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

std::string readable_bytes(double bytes) {
  return bytes < 1 << 30 ? fmt::format("{:.2f} MiB", bytes / (1 << 20))
                         : fmt::format("{:.2f} GiB", bytes / (1 << 30));
}

std::string grouped(int64_t number) {
  return python_grouped(static_cast<double>(number), 0);
}

// The table: a line for each group of checks, printed when it is done.
class Report {
 public:
  // `act` returns what was found. A failure is printed in its line and kept for finish(). Returns whether all
  // went well.
  bool check(const char* what, const std::function<std::string()>& act) {
    try {
      line(what, "right", act());
      return true;
    } catch (const Error& error) {
      line(what, "WRONG", "see below");
      if (messages_.empty()) code_ = error.code();
      messages_.emplace_back(error.what());
      return false;
    }
  }
  void line(const char* what, const char* verdict, const std::string& text) const {
    fmt::print("{:<16} {:<6} {}\n", what, verdict, text);
    std::fflush(stdout);
  }
  // Throws the first failure, with the texts of all.
  void finish() const {
    if (!messages_.empty()) throw Error(code_, fmt::format("{}", fmt::join(messages_, "\nhyperion: ")));
  }

 private:
  ExitCode code_ = ExitCode::kOk;
  std::vector<std::string> messages_;
};

Environment environment_of(const CommandLine& line, const JobConfig& config) {
  Environment environment;
  const int64_t ranks = line.ranks > 0 ? line.ranks : job_environment(config).world_size;
  environment.world_size = environment.local_world_size = static_cast<int>(ranks);
  return environment;  // of rank 0
}

std::string describe_batch(const JobConfig& config, const Mesh& mesh) {
  const auto& training = config.training;
  const int64_t microbatch = training.local_batch_size * mesh.degree(MeshDim::kBatch);
  const int64_t global = training.global_batch_size > 0 ? training.global_batch_size : microbatch;
  const int64_t ranks = mesh.degree(MeshDim::kBatch), microbatches = global / microbatch;
  return fmt::format(
      "{} sequences of {} per step: {} tokens ({} data-parallel rank{} x {} sequences x {} microbatch{})",
      global, training.seq_len, grouped(global * training.seq_len), ranks, ranks == 1 ? "" : "s",
      training.local_batch_size, microbatches, microbatches == 1 ? "" : "es");
}

std::string describe_memory(const JobConfig& config, const ModelArgs& model, const Mesh& mesh) {
  const auto& training = config.training;
  const int64_t microbatch = training.local_batch_size * mesh.degree(MeshDim::kBatch);
  const int64_t microbatches = training.global_batch_size > 0 ? training.global_batch_size / microbatch : 1;
  const JobSize size = job_size(config, model, mesh.degree(MeshDim::kFsdp), microbatches);
  return fmt::format("{} per rank for weights, gradients and optimizer{}, and at least {} for activations",
                     readable_bytes(size.states()),
                     config.ema.enable ? fmt::format(", {} for averages", readable_bytes(size.averages)) : "",
                     readable_bytes(size.activations));
}

std::string describe_files(const std::string& path) {
  const std::vector<CorpusFile> files = find_corpus(path);
  uint64_t bytes = 0;
  for (const CorpusFile& file : files) bytes += file.size;
  return fmt::format("{}: {} file{}, {} bytes", path, files.size(), files.size() == 1 ? "" : "s",
                     grouped(static_cast<int64_t>(bytes)));
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
    throw Error(ExitCode::kPreCheckpoint, fmt::format("nothing can be written there: {}", error.what()));
  }
  remove();
  return fmt::format("{}: {}, {} free", folder.string(), made.empty() ? "can be written" : "can be made",
                     readable_bytes(static_cast<double>(space.available)));
}

// The state of rank 0 of the job, described but without memory, and the groups it is sharded over.
struct DescribedState {
  DescribedState(const ResumePlan& plan, const JobConfig& configured, const ModelArgs& args, const Mesh& mesh,
                 const Environment& environment, DataLoader& loader)
      : model(args, plan.config.training.loss_chunk_bytes),
        float8(
            convert_to_float8(model, plan.config, {.cpu = false, .compute_capability = 90, .name = "a GPU"})),
        groups(mesh, environment, {.backend = CommBackend::kFake}),
        fsdp(groups.get(MeshDim::kFsdp), groups.get(MeshDim::kDpReplicate), sharding(plan.config, float8)),
        fsdp_model(model, fsdp, fsdp_model_options(plan.config, model)),
        parameters(fsdp_model.parameters()),
        adam(parameters, adam_options(plan.config.optimizer)) {
    for (const std::string& warning : float8.warnings) log_warning("{}", warning);
    if (plan.config.ema.enable)
      ema = std::make_unique<Ema>(parameters,
                                  EmaOptions{.decay = plan.config.ema.decay, .every = 1, .on_cpu = false});
    components =
        state_components({parameters, mesh, 0, at::kCPU, adam, ema.get(), state, loader, plan, configured});
  }

  static ShardingOptions sharding(const JobConfig& config, const Float8Setup& float8) {
    ShardingOptions options = sharding_options(config.training, at::kCPU, float8.codec);
    options.state_device = at::kMeta;
    return options;
  }
  std::vector<StateComponent*> parts() const {
    std::vector<StateComponent*> all;
    for (const auto& component : components) all.push_back(component.get());
    return all;
  }

  Transformer model;
  Float8Setup float8;
  ProcessGroups groups;
  FsdpContext fsdp;
  FsdpModel fsdp_model;
  std::vector<ShardedParameterPtr> parameters;
  Adam adam;
  std::unique_ptr<Ema> ema;
  TrainState state;
  std::vector<std::unique_ptr<StateComponent>> components;
};

std::string describe_start(const JobConfig& config, const ChosenCheckpoint* chosen, int64_t step) {
  const int64_t last = config.training.steps;
  if (config.checkpoint.create_seed_checkpoint) return "write the initial weights as step-0 and end";
  if (chosen == nullptr) return fmt::format("train steps 1 to {} from random weights", last);
  const std::string path = chosen->candidate.path.string();
  if (step >= last)
    return fmt::format("train nothing: {} is at step {}, and training.steps = {}", path, step, last);
  return fmt::format("{} {}, then train steps {} to {}",
                     chosen->candidate.source == LoadSource::kOwn ? "resume from" : "load", path, step + 1,
                     last);
}

}  // namespace

ExitCode check_command(const CommandLine& line) {
  if (std::getenv("HYPERION_LOG_LEVEL") == nullptr) spdlog::set_level(spdlog::level::warn);
  Report report;
  ResolvedConfig resolved = load_config(line.config_file, line.overrides);
  expand_dump_folder(resolved);
  resolve_hf_model(resolved, install_root());
  for (const std::string& warning : resolved.warnings) log_warning("{}", warning);
  const JobConfig& config = resolved.config;
  const ModelArgs model = model_args(config.model);
  const Environment environment = environment_of(line, config);

  std::optional<DataSetup> data;
  report.check("configuration", [&] {
    data = checked_data(resolved, model, environment.world_size);
    return line.config_file;
  });
  report.check("dump folder", [&] { return probe_writable(config.job.dump_folder); });
  if (!data) {
    report.finish();  // nothing that follows has a meaning
  }
  const Mesh mesh(mesh_config(config.parallelism), environment.world_size);
  report.line("model", "right",
              fmt::format("{} {}, {} parameters", config.model.name, config.model.flavor,
                          grouped(count_parameters(model).total)));
  report.line("tokenizer", "right",
              fmt::format("{}: {} entries", data->tokenizer_path, grouped(data->tokenizer->vocab_size())));
  report.line("ranks", "right", mesh.describe());
  report.line("batch", "right", describe_batch(config, mesh));

  const uint64_t seed =
      static_cast<uint64_t>(config.debug.seed.value_or(0));  // unset: it is drawn, and no difference
  const LoaderPlace place = loader_place(mesh, 0, seed, model);
  std::unique_ptr<DataLoader> loader;
  report.check("training data", [&] {
    loader = training_loader(config, *data, place);
    return describe_files(training_files(config));
  });
  if (config.validation.enable)
    report.check("validation data", [&] {
      validation_loader(config, *data, place);
      return describe_files(validation_files(config));
    });
  if (!loader) report.finish();

  const fs::path folder = fs::path(config.job.dump_folder) / config.checkpoint.folder;
  SoloCoordinator alone;
  std::optional<ResumeSource> source;
  std::optional<ResumePlan> plan;
  std::unique_ptr<DescribedState> state;
  const ChosenCheckpoint* chosen = nullptr;
  report.check("checkpoints", [&]() -> std::string {
    if (config.checkpoint.enable) {
      source.emplace(config, CheckpointFolder(folder), install_root(), alone);
      if (source->chosen()) chosen = &*source->chosen();
    }
    plan = plan_run(resolved, model, mesh, seed, loader->fingerprint(), job_record(resolved, *data), chosen);
    for (const std::string& warning : plan->warnings) log_warning("{}", warning);
    state = std::make_unique<DescribedState>(*plan, config, model, mesh, environment, *loader);
    if (!config.checkpoint.enable) return "off (checkpoint.enable = false): nothing is loaded or saved";
    if (chosen == nullptr) return fmt::format("{}: none to resume from", folder.string());
    const ComponentLoad load = plan_component_load(*chosen, state->parts(), plan->config,
                                                   [&] { return hugging_face_names(model, chosen->names); });
    load_values(*chosen, state->parts());
    return fmt::format(
        "{}: {} tensors fit by name, shape and type; their bytes are compared when they are loaded",
        chosen->candidate.path.string(), load.items.size());
  });
  if (plan) report.line("memory", "-", describe_memory(plan->config, model, mesh));
  if (state) report.line("a start would", "-", describe_start(plan->config, chosen, state->state.step));
  report.finish();
  return ExitCode::kOk;
}

}  // namespace hyperion
