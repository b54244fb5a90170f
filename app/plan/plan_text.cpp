#include "app/plan/plan_text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "models/description.h"
#include "trainer/config/input_path.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"
#include "trainer/metrics/flops.h"

namespace hyperion::app {
namespace {

using trainer::Family, trainer::StepTime;

constexpr double kDay = 86400;

// 419 unexpected interruptions of 16,384 GPUs in 54 days (The Llama 3 Herd of Models, section 3.3.4).
constexpr double kGpuSecondsPerFailure = 54.0 * kDay * 16384 / 419;
// The main thread took 0.017 s for the 1,099 kernels of a step of 8B on a slow CPU
// (docs/notes/simulated_step.md); the thread of backward and the driver come on top.
constexpr double kHostSecondsPerKernel = 15e-6;
// The rate at which a node writes to shared storage, an assumption. Saves in the background cost training
// less.
constexpr double kNodeWriteBytesPerSecond = 1e9;

std::string batch_text(const MeshPlan& plan) {
  const auto& parallelism = plan.config.parallelism;
  const int64_t rows = parallelism.pipeline_parallel_degree > 1
                           ? parallelism.pipeline_parallel_microbatch_size
                           : plan.config.training.local_batch_size;
  return fmt::format("{} x {:.0f}", rows, plan.microbatches);
}

double per_gpu(const MeshPlan& plan, const StepTime& time, const Hardware& hardware) {
  return plan.speed(time) / static_cast<double>(hardware.gpus);
}

double mfu(const MeshPlan& plan, const StepTime& time, const PlanFacts& facts, const Hardware& hardware) {
  return per_gpu(plan, time, hardware) * facts.flops_per_token / hardware.card.middle.peak;
}

std::string days_text(double days) {
  return days < 10 ? fmt::format("{:.1f}", days) : three_digits(days);
}

// Returns lines such as "FP8 (model.converters)  1.18 times as fast": the plan with one thing changed.
std::string what_would_change(const MeshPlan& plan, const Hardware& hardware, const models::ModelArgs& model,
                              const config::ResolvedConfig& resolved) {
  const auto ratio = [&](const config::JobConfig& config, const Hardware& changed) -> std::string {
    if (!can_run(config, resolved, model, changed)) return "cannot be run";
    const std::optional<MeshPlan> other = Planner(model, changed).plan(config, /*ends=*/false);
    if (!other) return "cannot be run";
    if (other->memory.total() > usable_memory(hardware.card))
      return fmt::format("does not fit: {:.1f} GiB", other->memory.total() / kGib);
    return fmt::format("{:.2f} times as fast", other->speed(other->middle) / plan.speed(plan.middle));
  };
  std::string text = "\nwith one thing changed\n";
  const auto add = [&](const char* what, const std::string& how) {
    text += fmt::format("  {:<44}{}\n", what, how);
  };
  if (!config::kFloat8.on(plan.config) && !config::kMx.on(plan.config)) {
    config::JobConfig float8 = plan.config;
    float8.model.converters.push_back(config::Converter::kFloat8);
    auto& options = float8.quantize.linear.float8;
    options.enable_fsdp_float8_all_gather =
        options.recipe_name.value_or(float8::Recipe::kTensorwise) == float8::Recipe::kTensorwise;
    add("FP8 (model.converters)", ratio(float8, hardware));
  }
  config::JobConfig none = plan.config;
  none.activation_checkpoint.mode = config::RecomputeMode::kNone;
  if (plan.config.activation_checkpoint.mode != none.activation_checkpoint.mode)
    add("no activation checkpointing", ratio(none, hardware));
  if (hardware.gpus > hardware.cluster.gpus_per_node) {
    Hardware faster = hardware;
    faster.cluster.network *= 2;
    add("twice the network", ratio(plan.config, faster));
  }
  config::JobConfig larger = plan.config;
  larger.training.global_batch_size = static_cast<int64_t>(2 * plan.global_batch);
  if (plan.config.parallelism.pipeline_parallel_degree > 1) larger.training.local_batch_size *= 2;
  add("twice the batch of a step", ratio(larger, hardware));
  return text;
}

// Returns {family: {launches, bytes, flops}} of the kernels of a step.
nlohmann::ordered_json work_json(const trainer::StepWork& work) {
  nlohmann::ordered_json json;
  for (const trainer::Kernels& kernels : work.kernels) {
    nlohmann::ordered_json& row = json[std::string(name_of(kernels.family))];
    const auto add = [&](const char* key, double value) {
      const double before = row.contains(key) ? row[key].get<double>() : 0;
      row[key] = before + kernels.times * value;
    };
    add("launches", kernels.launches);
    add("bytes", kernels.bytes);
    add("flops", kernels.flops);
  }
  return json;
}

// Returns {group: bytes} that a rank sends in a step.
nlohmann::ordered_json sent_json(const trainer::StepWork& work) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [group, bytes] : work.sent()) json[std::string(parallel::name_of(group))] = bytes;
  return json;
}

}  // namespace

std::string three_digits(double value) {
  if (value <= 0) return "0";
  if (!(value < 1e15)) return fmt::format("{:.3g}", value);
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return fmt::format("{}", format_count(static_cast<uint64_t>(std::round(value / unit) * unit + 0.5)));
}

std::string settings_text(const MeshPlan& plan) {
  const auto& parallelism = plan.config.parallelism;
  std::string text = std::string(text_of(plan.config.activation_checkpoint.mode));
  if (parallelism.enable_async_tensor_parallel) text += ", async TP";
  if (parallelism.context_parallel_degree > 1)
    text += parallelism.context_parallel_rotate_method == "alltoall" ? ", ring" : ", gathered keys";
  if (parallelism.pipeline_parallel_degree > 1) text += ", " + parallelism.pipeline_parallel_schedule;
  if (parallelism.expert_parallel_degree > 1 && parallelism.expert_parallel_once_per_node)
    text += ", once per node";
  if (parallelism.expert_parallel_degree > 1 && parallelism.expert_parallel_slices > 1)
    text += fmt::format(", {} slices", parallelism.expert_parallel_slices);
  if (parallelism.fsdp_reshard_after_forward != config::ReshardAfterForward::kDefault)
    text += fmt::format(", reshard {}", text_of(parallelism.fsdp_reshard_after_forward));
  return text;
}

const std::vector<TimePart>& time_parts() {
  static const std::vector<TimePart> list = {
      {"products", "matrix products", {Family::kProducts, Family::kHeadProducts, Family::kExpertProducts}},
      {"attention", "attention", {Family::kAttention}},
      {"rows",
       "rows (norms, RoPE, SwiGLU, routing, casts, loss)",
       {Family::kNorms, Family::kRope, Family::kGatedActivation, Family::kRouting, Family::kResidual,
        Family::kCopies, Family::kFloat8Casts, Family::kLoss, Family::kPacking, Family::kEmbedding}},
      {"optim", "optimizer", {Family::kOptimizer, Family::kMuonProducts}},
      {"comm",
       "exposed communication",
       {Family::kShardExchange, Family::kTensorExchange, Family::kDispatch, Family::kSequenceExchange,
        Family::kMuonExchange}},
      {"bubble", "bubble and exposed transfers", {Family::kBubble, Family::kTransfers}}};
  return list;
}

double TimePart::seconds_of(const StepTime& time) const {
  double seconds = 0;
  for (const Family family : families) seconds += time.of(family);
  return seconds;
}

std::array<PeakPart, 6> memory_parts(const trainer::PeakMemory& memory) {
  return {{{"states", "weights and optimizer states", memory.states},
           {"gradients", "gradients", memory.gradients + memory.unsharded},
           {"gathered", "gathered weights", memory.gathered},
           {"activations", "kept activations", memory.activations},
           {"working", "temporary tensors of the step", memory.working},
           {"lost", "lost by the allocator", memory.reserved}}};
}

trainer::CardRange known_card(const std::string& named) {
  const std::filesystem::path known = config::install_root() / "scripts/cards.json";
  const size_t colon = named.rfind(':');
  const std::string file = named.substr(0, colon);
  if (file.ends_with(".json")) {
    const trainer::Cards cards{std::filesystem::path(file)};
    if (colon != std::string::npos) return cards.find(named.substr(colon + 1));
    const std::vector<std::string> names = cards.names();
    if (names.size() == 1) return cards.find(names.front());
    throw_config("--gpu {}: the file has several cards: name one, as {}:{}", named, named, names.front());
  }
  return trainer::Cards(known).find(named);
}

std::string describe_prediction(const config::JobConfig& config, const models::ModelArgs& model,
                                const Hardware& hardware) {
  config::JobConfig planned = config;
  planned.parallelism.data_parallel_shard_degree =
      config::data_parallel_degree(config, hardware.gpus) / config.parallelism.data_parallel_replicate_degree;
  const std::optional<MeshPlan> plan = Planner(model, hardware).plan(planned, /*ends=*/true);
  if (!plan) return "not predicted: no plan of the pipeline";
  PlanFacts facts;
  facts.flops_per_token =
      metrics::flops_per_token_square(models::describe_model(model), config.training.seq_len);
  return fmt::format(
      "on {}: {:.1f} GiB reserved; {} to {} tokens/s per GPU, MFU {:.0f} % (not measured; "
      "hyperion plan for other meshes)",
      hardware.card.name, plan->memory.total() / kGib, three_digits(per_gpu(*plan, plan->slow, hardware)),
      three_digits(per_gpu(*plan, plan->fast, hardware)), 100 * mfu(*plan, plan->middle, facts, hardware));
}

SaveInterval save_interval(double state_bytes, int64_t gpus, int gpus_per_node) {
  const double nodes = std::ceil(static_cast<double>(gpus) / gpus_per_node);
  SaveInterval interval{.between_failures = kGpuSecondsPerFailure / static_cast<double>(gpus),
                        .save_seconds = state_bytes / nodes / kNodeWriteBytesPerSecond};
  interval.seconds = std::sqrt(2 * interval.save_seconds * interval.between_failures);
  return interval;
}

std::string plan_table(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware,
                       const SearchOptions& options) {
  const double days_of_tokens = facts.tokens / kDay;
  std::string text = fmt::format(
      "{}\n{} x {}, {} of a node, {:.0f} Gb/s per GPU between nodes; {} sequences of {} per step; {} of {} "
      "configurations fit\n\n",
      facts.model, counted(hardware.gpus, "GPU"), hardware.card.name, hardware.cluster.gpus_per_node,
      hardware.cluster.network * 8 / 1e9, options.global_batch,
      result.plans.empty() ? 0 : result.plans.front().config.training.seq_len, format_count(result.fitting),
      format_count(result.tried));
  size_t width = 4;
  for (const MeshPlan& plan : result.plans) width = std::max(width, describe_mesh(plan).size());
  text += fmt::format("{:>2}  {:<{}}  {:>8}  {:>6}  {:>17}  {:>5}  {}", "#", "mesh", width, "batch", "GiB",
                      "tokens/s per GPU", "MFU", facts.tokens > 0 ? "  days  " : "");
  for (const TimePart& part : time_parts()) text += fmt::format("{:>11}", part.name);
  text += "  settings\n";
  for (size_t i = 0; i < result.plans.size(); ++i) {
    const MeshPlan& plan = result.plans[i];
    text += fmt::format(
        "{:>2}  {:<{}}  {:>8}  {:>6.1f}  {:>17}  {:>4.0f}%  {}", i + 1, describe_mesh(plan), width,
        batch_text(plan), plan.memory.total() / kGib,
        fmt::format("{} to {}", three_digits(per_gpu(plan, plan.slow, hardware)),
                    three_digits(per_gpu(plan, plan.fast, hardware))),
        100 * mfu(plan, plan.middle, facts, hardware),
        facts.tokens > 0 ? fmt::format("{:>6}  ", days_text(days_of_tokens / plan.speed(plan.middle))) : "");
    for (const TimePart& part : time_parts())
      text += fmt::format("{:>10.0f}%", 100 * part.seconds_of(plan.middle) / plan.middle.total());
    text += fmt::format("  {}\n", settings_text(plan));
  }
  const SaveInterval saves = save_interval(facts.state_bytes, hardware.gpus, hardware.cluster.gpus_per_node);
  text += fmt::format(
      "\nbatch: sequences of a microbatch x microbatches of a step. GiB: predicted for the fullest rank, of "
      "{:.1f}. rows: norms, RoPE, SwiGLU, routing, casts, loss. comm: what nothing hides.\n"
      "A checkpoint with optimizer state: {:.1f} GiB; at 1 GB/s per node {:.0f} s. With a failure every "
      "{:.1f} h "
      "(one in {:.0f} GPU hours, as Llama 3 405B's) save every {:.0f} minutes (Young and Daly).\n"
      "Nothing here is measured: no GPU has confirmed the constants of this card (scripts/cards.json).\n",
      usable_memory(hardware.card) / kGib, facts.state_bytes / kGib, saves.save_seconds,
      saves.between_failures / 3600, kGpuSecondsPerFailure / 3600, saves.seconds / 60);
  return text;
}

std::string explain_plan(const SearchResult& result, size_t index, const PlanFacts& facts,
                         const Hardware& hardware, const models::ModelArgs& model,
                         const config::ResolvedConfig& resolved) {
  const MeshPlan& plan = result.plans.at(index);
  const StepTime& time = plan.middle;
  const double per_token = 1e6 / plan.tokens() * static_cast<double>(hardware.gpus);
  std::string text = fmt::format(
      "Plan {}: {}, {}\n{} tokens/s on all GPUs ({} to {}), a step of {:.2f} s ({:.2f} to {:.2f}), MFU "
      "{:.0f} %\n",
      index + 1, describe_mesh(plan), settings_text(plan), three_digits(plan.speed(time)),
      three_digits(plan.speed(plan.slow)), three_digits(plan.speed(plan.fast)), time.total(),
      plan.fast.total(), plan.slow.total(), 100 * mfu(plan, time, facts, hardware));
  if (facts.tokens > 0) {
    const double days = facts.tokens / plan.speed(time) / kDay;
    text += fmt::format("{} tokens: {} days, {} GPU hours, without failures and saves\n",
                        three_digits(facts.tokens), days_text(days),
                        three_digits(days * 24 * static_cast<double>(hardware.gpus)));
  }
  text += "\nmemory of the fullest rank        GiB\n";
  const auto add_memory = [&](const char* name, double bytes) {
    text += fmt::format("  {:<34}{:>7.2f}\n", name, bytes / kGib);
  };
  for (const PeakPart& part : memory_parts(plan.memory)) add_memory(part.name, part.bytes);
  add_memory("all", plan.memory.total());
  add_memory("may use", usable_memory(hardware.card));
  text += "\ntime of a step                      ms            us per token    share\n";
  for (size_t i = 0; i < static_cast<size_t>(Family::kCount); ++i) {
    const auto family = static_cast<Family>(i);
    const double seconds = time.of(family);
    if (seconds <= 0) continue;
    text += fmt::format(
        "  {:<26}{:>16}{:>16.2f}{:>8.0f}%\n", name_of(family),
        fmt::format("{:.0f} to {:.0f}", 1e3 * std::min(plan.fast.of(family), plan.slow.of(family)),
                    1e3 * std::max(plan.fast.of(family), plan.slow.of(family))),
        seconds * per_token, 100 * seconds / time.total());
  }
  const double interval = time.total() / plan.kernels;
  text += fmt::format(
      "\n{} kernels, one every {:.0f} us{}\n", three_digits(plan.kernels), 1e6 * interval,
      interval < kHostSecondsPerKernel ? ": host-bound, for the host takes longer to launch one" : "");
  text += what_would_change(plan, hardware, model, resolved);
  text +=
      "\nUncertain: the constants of the card are ranges of published and estimated figures; the last row is "
      "what "
      "published runs took beyond the parts. Routers are taken to deal tokens out evenly, stages to be as "
      "slow as the slowest, the host to launch as fast as the GPU computes, and text to be read in time.\n";
  return text;
}

std::string plans_json(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware) {
  nlohmann::ordered_json json;
  json["model"] = facts.model;
  json["card"] = hardware.card.name;
  json["gpus"] = hardware.gpus;
  json["configurations"] = result.tried;
  json["fitting"] = result.fitting;
  json["plans"] = nlohmann::ordered_json::array();
  for (const MeshPlan& plan : result.plans) {
    const auto& options = plan.config.parallelism;
    nlohmann::ordered_json one;
    one["mesh"] = describe_mesh(plan);
    one["parallelism"] = {{"data_parallel_replicate_degree", options.data_parallel_replicate_degree},
                          {"data_parallel_shard_degree", options.data_parallel_shard_degree},
                          {"tensor_parallel_degree", options.tensor_parallel_degree},
                          {"pipeline_parallel_degree", options.pipeline_parallel_degree},
                          {"context_parallel_degree", options.context_parallel_degree},
                          {"expert_parallel_degree", options.expert_parallel_degree},
                          {"expert_tensor_parallel_degree", options.expert_tensor_parallel_degree}};
    one["local_batch_size"] = plan.config.training.local_batch_size;
    one["global_batch_size"] = plan.global_batch;
    one["microbatches"] = plan.microbatches;
    one["settings"] = settings_text(plan);
    one["reserved_gib"] = plan.memory.total() / kGib;
    for (const PeakPart& part : memory_parts(plan.memory)) one["memory_gib"][part.key] = part.bytes / kGib;
    one["tokens_per_second_per_gpu"] = {per_gpu(plan, plan.slow, hardware),
                                        per_gpu(plan, plan.middle, hardware),
                                        per_gpu(plan, plan.fast, hardware)};
    one["step_seconds"] = {plan.fast.total(), plan.middle.total(), plan.slow.total()};
    one["kernels"] = plan.kernels;
    one["mfu"] = mfu(plan, plan.middle, facts, hardware);
    for (size_t i = 0; i < static_cast<size_t>(Family::kCount); ++i)
      if (const double seconds = plan.middle.seconds[i]; seconds > 0)
        one["seconds"][std::string(name_of(static_cast<Family>(i)))] = seconds;
    one["slowest_stage"] = plan.slowest_stage;
    one["work"] = work_json(plan.work);
    one["sent_bytes"] = sent_json(plan.work);
    json["plans"].push_back(std::move(one));
  }
  return json.dump(1) + "\n";
}

}  // namespace hyperion::app
