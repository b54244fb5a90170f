#include "app/plan/mesh_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/hugging_face/config.h"
#include "trainer/preflight.h"

namespace hyperion::app {
namespace {

using config::RecomputeMode;

// The context of CUDA and cuBLAS, NCCL's buffers, and what else a process has on a GPU.
constexpr double kOutsideAllocator = 3.0 * (1 << 30);
constexpr int64_t kLargestMicrobatch = 16;  // sequences

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t power = 1; power <= most; power *= 2) powers.push_back(power);
  return powers;
}

// The degrees of one mesh.
struct Degrees {
  int64_t tensor = 1, pipeline = 1, context = 1, replicas = 1, experts = 1, expert_tensor = 1;
  auto operator<=>(const Degrees&) const = default;
};

Degrees degrees_of(const config::JobConfig::Parallelism& options) {
  return {options.tensor_parallel_degree,  options.pipeline_parallel_degree,
          options.context_parallel_degree, options.data_parallel_replicate_degree,
          options.expert_parallel_degree,  options.expert_tensor_parallel_degree};
}

class Enumerator {
 public:
  Enumerator(const config::ResolvedConfig& resolved, const models::ModelArgs& model, const Hardware& hardware,
             const SearchOptions& options)
      : resolved_(resolved), model_(model), hardware_(hardware), options_(options) {}

  std::vector<config::JobConfig> configurations() {
    if (options_.configured)
      add_configured();
    else if (options_.keep_mesh)
      add_mesh(degrees_of(resolved_.config.parallelism));
    else
      for_each_mesh([this](const Degrees& degrees) { add_mesh(degrees); });
    return std::move(found_);
  }

 private:
  template <typename F>
  void for_each_mesh(F&& f) const {
    const int64_t gpus = hardware_.gpus, node = std::min<int64_t>(hardware_.cluster.gpus_per_node, gpus);
    const int64_t length = resolved_.config.training.seq_len;
    const bool experts = model_.experts.are_present();
    for (const int64_t tensor : powers_of_two(node))
      for (const int64_t pipeline : powers_of_two(std::min<int64_t>(32, model_.n_layers)))
        for (const int64_t context : powers_of_two(std::max<int64_t>(1, length / kLeastTokens))) {
          const int64_t model_ranks = tensor * pipeline * context;
          if (gpus % model_ranks != 0) continue;
          const int64_t data = gpus / model_ranks;
          for (const int64_t replicas : powers_of_two(data)) {
            if (data % replicas != 0) continue;
            const int64_t shards = data / replicas * context * tensor;
            for (const int64_t expert : powers_of_two(experts ? model_.experts.num_experts : 1)) {
              if (shards % expert != 0) continue;
              f(Degrees{tensor, pipeline, context, replicas, expert, 1});
              if (tensor > 1 && expert > 1 && shards % (expert * tensor) == 0)
                f(Degrees{tensor, pipeline, context, replicas, expert, tensor});
            }
          }
        }
  }

  void add_configured() {
    config::JobConfig config = resolved_.config;
    auto& parallelism = config.parallelism;
    const Degrees degrees = degrees_of(parallelism);
    if (parallelism.data_parallel_shard_degree < 0)
      parallelism.data_parallel_shard_degree = std::max<int64_t>(
          1, hardware_.gpus / (degrees.tensor * degrees.pipeline * degrees.context * degrees.replicas));
    if (options_.global_batch > 0) config.training.global_batch_size = options_.global_batch;
    found_.push_back(config);
  }

  void add_mesh(const Degrees& degrees) {
    const int64_t model_ranks = degrees.tensor * degrees.pipeline * degrees.context;
    if (hardware_.gpus % (model_ranks * degrees.replicas) != 0) return;
    const int64_t data = hardware_.gpus / model_ranks;
    if (options_.global_batch % data != 0) return;
    const int64_t batch = options_.global_batch / data;  // sequences of a data-parallel rank and step
    config::JobConfig config = resolved_.config;
    config.training.global_batch_size = options_.global_batch;
    auto& parallelism = config.parallelism;
    parallelism.tensor_parallel_degree = degrees.tensor;
    parallelism.pipeline_parallel_degree = degrees.pipeline;
    parallelism.context_parallel_degree = degrees.context;
    parallelism.data_parallel_replicate_degree = degrees.replicas;
    parallelism.data_parallel_shard_degree = data / degrees.replicas;
    parallelism.expert_parallel_degree = degrees.experts;
    parallelism.expert_tensor_parallel_degree = degrees.expert_tensor;
    if (degrees.tensor == 1) parallelism.enable_async_tensor_parallel = false;
    for (int64_t rows = 1; rows <= std::min(batch, kLargestMicrobatch); rows *= 2) {
      if (batch % rows != 0) continue;
      if (degrees.pipeline == 1) {
        config.training.local_batch_size = rows;
        add_exchanges(config);
        continue;
      }
      // Many more microbatches than ranks hide no more of the bubble, and take long to simulate.
      const bool is_largest = rows * 2 > std::min(batch, kLargestMicrobatch) || batch % (rows * 2) != 0;
      if (batch / rows > std::max<int64_t>(64, 8 * degrees.pipeline) && !is_largest) continue;
      config.training.local_batch_size = batch;
      parallelism.pipeline_parallel_microbatch_size = rows;
      // GPipe and LoopedBFS keep more than the first two and are as fast, as is DualPipeV next to
      // ZBVZeroBubble.
      for (const char* schedule : {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"}) {
        parallelism.pipeline_parallel_schedule = schedule;
        parallelism.pipeline_parallel_layers_per_stage.reset();
        add_exchanges(config);
      }
    }
  }

  // Adds the ways in which ranks of tensor, context and expert parallelism exchange.
  void add_exchanges(config::JobConfig config) {
    auto& parallelism = config.parallelism;
    for (const bool async : {false, true}) {
      if (async && parallelism.tensor_parallel_degree == 1) break;
      parallelism.enable_async_tensor_parallel = async;
      for (const char* keys : {"allgather", "alltoall"}) {
        if (keys == std::string_view("alltoall") && parallelism.context_parallel_degree == 1) break;
        parallelism.context_parallel_rotate_method = keys;
        for (const bool once : {false, true}) {
          const int64_t ranks =
              parallelism.expert_parallel_degree * parallelism.expert_tensor_parallel_degree;
          if (once && (parallelism.expert_parallel_degree == 1 || ranks <= hardware_.cluster.gpus_per_node))
            break;
          parallelism.expert_parallel_once_per_node = once;
          found_.push_back(config);
        }
      }
    }
  }

  static constexpr int64_t kLeastTokens = 8192;  // of a sequence on a context parallel rank

  const config::ResolvedConfig& resolved_;
  const models::ModelArgs& model_;
  const Hardware& hardware_;
  const SearchOptions& options_;
  std::vector<config::JobConfig> found_;
};

config::RunContext facts_of(const models::ModelArgs& model, const Hardware& hardware) {
  return trainer::run_facts(model, hardware.gpus,
                            std::min<int64_t>(hardware.cluster.gpus_per_node, hardware.gpus));
}

// Calls `fits` with the configuration's choices of activation checkpointing and of when gathered weights are
// freed, the fastest first, until no other choice that fits can be faster.
template <typename F>
void try_settings_of_memory(config::JobConfig config, F&& fits) {
  using config::ReshardAfterForward;
  auto& parallelism = config.parallelism;
  std::vector<ReshardAfterForward> reshards = {ReshardAfterForward::kNever, ReshardAfterForward::kDefault};
  if (parallelism.data_parallel_shard_degree * parallelism.context_parallel_degree == 1)
    reshards = {ReshardAfterForward::kDefault};
  else if (parallelism.pipeline_parallel_degree > 1)
    reshards = {ReshardAfterForward::kDefault, ReshardAfterForward::kAlways};
  for (const RecomputeMode mode :
       {RecomputeMode::kNone, RecomputeMode::kElementwise, RecomputeMode::kSelective, RecomputeMode::kFull}) {
    config.activation_checkpoint.mode = mode;
    if (mode == RecomputeMode::kSelective) config.activation_checkpoint.selective_ac_option = "op";
    for (const ReshardAfterForward reshard : reshards) {
      parallelism.fsdp_reshard_after_forward = reshard;
      if (!fits(config)) continue;
      if (reshard == reshards.front()) return;
      break;
    }
  }
}

// Returns the plan of the configuration with the number of slices of tokens that makes a step fastest.
std::optional<MeshPlan> fastest_slices(Planner& planner, config::JobConfig config) {
  auto& slices = config.parallelism.expert_parallel_slices;
  slices = 1;
  std::optional<MeshPlan> fastest = planner.times(config, /*ends=*/false);
  if (!fastest || config.parallelism.expert_parallel_degree == 1) return fastest;
  for (const int64_t more : {2, 4}) {
    slices = more;
    std::optional<MeshPlan> plan = planner.times(config, /*ends=*/false);
    if (plan && plan->middle.total() < fastest->middle.total()) fastest = std::move(plan);
  }
  return fastest;
}

}  // namespace

bool can_run(const config::JobConfig& config, const config::ResolvedConfig& resolved,
             const models::ModelArgs& model, const Hardware& hardware) {
  const config::ResolvedConfig candidate{.config = config, .origins = resolved.origins, .warnings = {}};
  config::Problems problems;
  config::check_config(candidate, facts_of(model, hardware), problems);
  return problems.lines().empty();
}

double usable_memory(const trainer::CardRange& card) {
  return card.memory_bytes - kOutsideAllocator;
}

SearchResult search_meshes(const config::ResolvedConfig& resolved, const models::ModelArgs& model,
                           const Hardware& hardware, const SearchOptions& options,
                           const std::function<void(size_t done, size_t all)>& progress) {
  const std::vector<config::JobConfig> candidates =
      Enumerator(resolved, model, hardware, options).configurations();
  Planner planner(model, hardware, /*refuses=*/options.configured);
  SearchResult result;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double limit = usable_memory(hardware.card);
  std::map<Degrees, MeshPlan> best;
  const auto fits = [&](const config::JobConfig& config) {
    Degrees shape = degrees_of(config.parallelism);
    shape.replicas = 1;  // of meshes that differ in their replicas alone the best is shown
    const auto found = best.find(shape);
    std::optional<MeshPlan> plan =
        options.configured ? planner.times(config, /*ends=*/false) : fastest_slices(planner, config);
    // A replay of memory takes long: of a mesh it is not tried what is slower than the best that fits.
    if (!plan || (found != best.end() && plan->middle.total() > found->second.middle.total())) return false;
    ++result.tried;
    // While nothing fits, the one that needs the least is looked for.
    double most = limit;
    if (best.empty()) most = result.smallest ? result.smallest->memory.total() : kInfinity;
    const std::optional<trainer::PeakMemory> memory = planner.memory(plan->config, most);
    if (!memory) return false;
    plan->memory = *memory;
    if (memory->total() > limit) {
      result.smallest = std::move(plan);
      return false;
    }
    if (found == best.end() || plan->middle.total() < found->second.middle.total()) {
      if (!can_run(plan->config, resolved, model, hardware)) return false;
      best.insert_or_assign(shape, std::move(*plan));
    }
    ++result.fitting;
    return true;
  };
  for (size_t i = 0; i < candidates.size(); ++i) {
    progress(i, candidates.size());
    if (options.configured)
      config::require_valid_config({.config = candidates[i], .origins = resolved.origins, .warnings = {}},
                                   facts_of(model, hardware));
    if (!can_run(candidates[i], resolved, model, hardware)) continue;
    if (options.configured)
      fits(candidates[i]);
    else
      try_settings_of_memory(candidates[i], fits);
  }
  for (auto& [degrees, plan] : best) result.plans.push_back(std::move(plan));
  std::ranges::stable_sort(result.plans, {},
                           [](const MeshPlan& plan) { return plan.middle.total() / plan.tokens(); });
  if (result.plans.size() > options.results)
    result.plans.erase(result.plans.begin() + static_cast<std::ptrdiff_t>(options.results),
                       result.plans.end());
  for (MeshPlan& plan : result.plans) plan = *planner.plan(plan.config, /*ends=*/true);
  return result;
}

std::string describe_mesh(const MeshPlan& plan) {
  const auto& options = plan.config.parallelism;
  const int64_t replicas = options.data_parallel_replicate_degree,
                shards = options.data_parallel_shard_degree;
  std::vector<std::string> parts;
  const auto add = [&](const char* name, int64_t degree) {
    if (degree > 1) parts.push_back(fmt::format("{} {}", name, degree));
  };
  add("PP", options.pipeline_parallel_degree);
  add("replicas", replicas);
  add("FSDP", shards);
  add("CP", options.context_parallel_degree);
  add("TP", options.tensor_parallel_degree);
  add("EP", options.expert_parallel_degree);
  if (options.expert_parallel_degree > 1) add("ETP", options.expert_tensor_parallel_degree);
  return parts.empty() ? "1 GPU" : fmt::format("{}", fmt::join(parts, " x "));
}

}  // namespace hyperion::app
