#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "app/commands.h"
#include "app/plan/mesh_search.h"
#include "app/plan/plan_page.h"
#include "app/plan/plan_text.h"
#include "base/counted.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/standard_streams.h"
#include "models/description.h"
#include "models/flavors/registry.h"
#include "trainer/config/fit_ranks.h"
#include "trainer/config/input_path.h"
#include "trainer/config/print.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/metrics/flops.h"
#include "trainer/optim/optimizer_states.h"
#include "trainer/preflight.h"

namespace hyperion::app {
namespace {

// The sequences of a step that the file says, on these ranks.
int64_t global_batch_of(const config::JobConfig& config, int64_t gpus) {
  if (config.training.global_batch_size > 0) return config.training.global_batch_size;
  const auto& degrees = config.parallelism;
  const int64_t model_ranks =
      degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * degrees.context_parallel_degree;
  return config.training.local_batch_size * std::max<int64_t>(1, gpus / model_ranks);
}

// Returns the fewest GPUs, by doubling, on which the job fits; 0: not on kMaxGpus.
int64_t fewest_gpus(const config::ResolvedConfig& resolved, const models::ModelArgs& model, Hardware hardware,
                    SearchOptions options) {
  constexpr int64_t kMaxGpus = 16384;
  for (hardware.gpus *= 2; hardware.gpus <= kMaxGpus; hardware.gpus *= 2) {
    options.global_batch = std::max(options.global_batch, hardware.gpus);
    if (search_meshes(resolved, model, hardware, options, [](size_t, size_t) {}).fitting > 0)
      return hardware.gpus;
  }
  return 0;
}

// Says what would make a job possible of which no plan fits.
[[noreturn]] void refuse(const SearchResult& result, const config::ResolvedConfig& resolved,
                         const models::ModelArgs& model, const Hardware& hardware,
                         const SearchOptions& options) {
  if (result.tried == 0)
    throw_config(
        "no mesh of {} can run this job with {} sequences per step: the number of data-parallel ranks must "
        "divide that number; give another --global-batch-size or --gpus{}",
        counted(hardware.gpus, "GPU"), options.global_batch,
        options.configured || options.keep_mesh ? ", or leave the mesh to the plan" : "");
  const double needed = result.smallest->memory.total(), usable = usable_memory(hardware.card);
  const int64_t fewest = options.configured ? 0 : fewest_gpus(resolved, model, hardware, options);
  throw_config(
      "the job fits on no mesh of {} x {}: the one that needs the least ({}) needs {:.1f} GiB of each GPU, "
      "of "
      "{:.1f} that it has; {}shorten training.seq_len{}",
      hardware.gpus, hardware.card.name, describe_mesh(*result.smallest), needed / (1 << 30),
      usable / (1 << 30),
      fewest > 0 ? fmt::format("it fits on {} (--gpus); or ", counted(fewest, "GPU")) : "",
      resolved.config.training.enable_cpu_offload ? "" : ", or set training.enable_cpu_offload = true");
}

void write_plan(const std::string& path, const config::ResolvedConfig& resolved, const MeshPlan& plan) {
  config::ResolvedConfig planned = resolved;
  planned.config.parallelism = plan.config.parallelism;
  planned.config.parallelism.on_mesh_mismatch = resolved.config.parallelism.on_mesh_mismatch;
  planned.config.training = plan.config.training;
  planned.config.activation_checkpoint = plan.config.activation_checkpoint;
  for (const config::Section& section : config::schema())
    for (const config::Option& option : section.options)
      if (config::toml_text(config::read(option, planned.config)) !=
          config::toml_text(config::read(option, resolved.config)))
        planned.origins[option.name] = "hyperion plan";
  write_file_atomic(path, config::to_toml(planned));
  print_text(fmt::format("Written: {} ({})\n", path, describe_mesh(plan)));
}

// Returns the bytes of a checkpoint: fp32 weights and the optimizer's states.
double state_bytes(const config::JobConfig::Optimizer& options, const models::ModelDescription& model) {
  double bytes = 0;
  models::for_each_named_parameter(model, [&](const std::string& fqn, const models::ParameterShape& shape) {
    const auto kinds = optim::state_kinds(options, fqn, shape.dims.size());
    bytes += shape.numel() * (sizeof(float) + optim::bytes_per_element(kinds, sizeof(float)));
  });
  return bytes;
}

using SearchOnGpus = std::function<SearchResult(const Hardware&, const SearchOptions&)>;

// Returns the fastest plans of the same batch on N/8 to 2 N GPUs, where there is one. `found` is that on N.
std::vector<GpusPlan> scaling_of(const MeshPlan& found, Hardware hardware, SearchOptions options,
                                 const SearchOnGpus& search) {
  std::vector<GpusPlan> scaling;
  const int64_t gpus = hardware.gpus;
  options.results = 1;
  for (const int64_t sixteenths : {2, 4, 8, 16, 32}) {
    if (gpus * sixteenths % 16 != 0) continue;
    hardware.gpus = gpus * sixteenths / 16;
    if (hardware.gpus == gpus)
      scaling.push_back({gpus, found});
    else if (SearchResult result = search(hardware, options); !result.plans.empty())
      scaling.push_back({hardware.gpus, std::move(result.plans.front())});
  }
  return scaling;
}

}  // namespace

ExitCode plan_command(const CommandLine& line) {
  if (std::getenv("HYPERION_LOG_LEVEL") == nullptr) spdlog::set_level(spdlog::level::warn);
  const CommandLine::Plan& options = line.plan;
  config::ResolvedConfig given = config::load_config(line.config_file, line.overrides);
  if (options.seq_len > 0) given.config.training.seq_len = options.seq_len;
  hugging_face::resolve_hf_model(given, config::install_root());
  config::ResolvedConfig resolved = given;
  resolved.config.parallelism.on_mesh_mismatch = config::OnMeshMismatch::kError;
  // A plan needs no data and no files of a run.
  resolved.config.checkpoint.enable = false;
  resolved.config.validation.enable = false;
  const models::ModelArgs model = trainer::job_model(resolved.config);
  const models::ModelDescription description = models::describe_model(model);
  const Hardware hardware{.gpus = options.gpus,
                          .card = known_card(options.gpu),
                          .cluster = {.gpus_per_node = static_cast<int>(options.gpus_per_node),
                                      .network = options.network * 1e9 / 8}};
  SearchOptions search{.global_batch = options.global_batch > 0
                                           ? options.global_batch
                                           : global_batch_of(resolved.config, options.gpus),
                       .configured = options.configured,
                       .keep_mesh = options.keep_mesh};
  const SearchOnGpus search_on = [&](const Hardware& on, const SearchOptions& with) {
    std::optional<Progress> progress;
    return search_meshes(resolved, model, on, with, [&](size_t done, size_t all) {
      if (!progress) progress.emplace("plan", all, "configurations");
      progress->update(done);
    });
  };
  const SearchResult result = search_on(hardware, search);
  if (result.plans.empty()) refuse(result, resolved, model, hardware, search);
  if (options.explain > static_cast<int64_t>(result.plans.size()))
    throw_config("--explain {}: there are {} plans", options.explain, result.plans.size());

  const models::ParameterCounts counts = models::count_parameters(description);
  const PlanFacts facts{
      .model = fmt::format(
          "{} {}, {} parameters{}", resolved.config.model.name, resolved.config.model.flavor,
          format_count(static_cast<uint64_t>(counts.total)),
          counts.active != counts.total
              ? fmt::format(", {} of them active", format_count(static_cast<uint64_t>(counts.active)))
              : ""),
      .flops_per_token = metrics::flops_per_token_square(description, resolved.config.training.seq_len),
      .state_bytes = state_bytes(resolved.config.optimizer, description),
      .tokens = options.tokens};
  if (options.json)
    print_text(plans_json(result, facts, hardware));
  else if (options.explain > 0)
    print_text(
        explain_plan(result, static_cast<size_t>(options.explain) - 1, facts, hardware, model, resolved));
  else
    print_text(plan_table(result, facts, hardware, search));
  if (!options.html.empty()) {
    const std::vector<GpusPlan> scaling = search.configured
                                              ? std::vector<GpusPlan>()
                                              : scaling_of(result.plans.front(), hardware, search, search_on);
    write_file_atomic(options.html, plan_page(result, facts, hardware,
                                              plan_table(result, facts, hardware, search), scaling));
    if (!options.json) print_text(fmt::format("Written: {}\n", options.html));
  }
  if (!options.write.empty())
    write_plan(options.write, given,
               result.plans[options.explain > 0 ? static_cast<size_t>(options.explain) - 1 : 0]);
  return ExitCode::kOk;
}

}  // namespace hyperion::app
