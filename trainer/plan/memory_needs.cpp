#include "trainer/plan/memory_needs.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "models/description.h"
#include "trainer/config/memory_advice.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {
namespace {

std::string format_size(double bytes) {
  std::string_view unit = "B";
  for (const std::string_view larger : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == "B" ? 0 : 1, unit);
}

// The share of a replayed step's tensors that a rank needs at least. The replay is within 5 % of what
// simulated GPUs reserve (docs/notes/plan.md).
constexpr double kLeastOfStep = 0.95;

constexpr std::string_view kTokens = "tokens of a step", kDescription = "names and shapes";

// Returns "3.3 PiB of memory (weights 1.1 PiB, gradients 2.2 PiB)".
std::string describe_parts(std::vector<MemoryPart> parts) {
  double sum = 0;
  std::string list;
  std::ranges::sort(parts, std::ranges::greater{}, &MemoryPart::bytes);
  for (const MemoryPart& part : parts) {
    sum += part.bytes;
    if (part.bytes > 0)
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", part.name, format_size(part.bytes));
  }
  return fmt::format("{} of memory ({})", format_size(sum), list);
}

std::string describe_lack(const std::vector<MemoryPart>& needed, const MemoryLimit& limit) {
  return fmt::format("needs at least {}, but {} is {}", describe_parts(needed), limit.what,
                     format_size(limit.bytes));
}

// Returns "set a key, or " if ranks keep unsharded weights or gradients that they could avoid, else "".
std::string sharding_remedy(const config::JobConfig& config, const JobSize& size) {
  if (size.peak.unsharded + size.peak.gathered == 0) return "";
  const auto& degrees = config.parallelism;
  if (degrees.fsdp_reshard_after_forward != config::ReshardAfterForward::kAlways &&
      (degrees.pipeline_parallel_degree > 1 ||
       degrees.fsdp_reshard_after_forward == config::ReshardAfterForward::kNever))
    return "set parallelism.fsdp_reshard_after_forward = \"always\", or ";
  return config::reduces_gradients_once(config) && degrees.pipeline_parallel_degree == 1
             ? "set parallelism.fsdp_reduce_gradients = \"every_microbatch\", or "
             : "";
}

// Returns "set a key, or " if the job fits with its states offloaded to the host, else "".
std::string offloading_remedy(config::JobConfig config, const JobSize& size, const RankMemory& memory) {
  if (!memory.device || config.training.enable_cpu_offload) return "";
  const double host_now = total(memory_needs(config, size, /*on_gpu=*/true).host);
  config.training.enable_cpu_offload = true;
  const MemoryNeeds needs = memory_needs(config, size, /*on_gpu=*/true);
  if (total(needs.device) > memory.device->bytes || total(needs.host) > memory.host.bytes) return "";
  return fmt::format(
      "set training.enable_cpu_offload = true ({} of it are in the host's memory then, and steps take "
      "longer), or ",
      format_size(total(needs.host) - host_now));
}

std::string sequence_remedy(const config::JobConfig& config) {
  const std::string context = config::context_advice(config);
  return fmt::format("lower training.seq_len{}{}",
                     config.training.local_batch_size > 1 ? " or training.local_batch_size" : "",
                     context.empty() ? "" : ", or " + context);
}

// Returns the key of the model's largest size that the user has set, else the key of the flavour.
std::string key_of_size(const config::ResolvedConfig& resolved, bool mostly_tables) {
  const auto is_set = [&](const char* key) { return resolved.origins.contains(key); };
  if (mostly_tables) return is_set("model.args.vocab_size") ? "model.args.vocab_size" : "model.flavor";
  const auto& args = resolved.config.model.args;
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"model.args.dim", args.dim},
      {"model.args.hidden_dim", args.hidden_dim},
      {"model.args.moe_hidden_dim", args.moe_hidden_dim},
      {"model.args.num_experts", args.num_experts},
      {"model.args.n_layers", args.n_layers}};
  std::string key = "model.flavor";
  int64_t largest = 0;
  for (const auto& [name, size] : sizes)
    if (size && *size > largest && is_set(name)) {
      key = name;
      largest = *size;
    }
  return key;
}

}  // namespace

bool MemoryNeeds::keeps_state_in_host() const {
  return std::ranges::any_of(host, [](const MemoryPart& part) {
    return part.bytes > 0 && part.name != kTokens && part.name != kDescription;
  });
}

double total(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

MemoryNeeds memory_needs(const config::JobConfig& config, const JobSize& size, bool on_gpu, int threads) {
  const bool offload = config.training.enable_cpu_offload;
  const bool pipeline = config.parallelism.pipeline_parallel_degree > 1;
  MemoryNeeds needs;
  needs.host = {{kTokens, size.tokens},
                {kDescription, size.description},
                {"copy for background saves", size.save_pool}};
  auto& device = on_gpu ? needs.device : needs.host;
  device.insert(device.end(), {{pipeline ? "activations of kept microbatches" : "activations of a microbatch",
                                kLeastOfStep * size.peak.activations},
                               {"temporary tensors of the step", kLeastOfStep * size.peak.working},
                               {"unsharded gradients", kLeastOfStep * size.peak.unsharded},
                               {pipeline ? "gathered weights of stages" : "gathered weights",
                                kLeastOfStep * size.peak.gathered},
                               {"buffers of exchanged matrices", size.exchanges}});
  auto& states = offload ? needs.host : device;
  // A GPU holds the sharded gradients of a unit from their reduction on, a host holds them throughout.
  const bool by_unit = on_gpu && !offload;
  states.insert(states.end(), {{"weights", size.weights},
                               {"optimizer state", size.optimizer},
                               {"gradients", by_unit ? kLeastOfStep * size.peak.gradients : size.gradients}});
  auto& averages = config.ema.device == config::EmaDevice::kCpu ? needs.host : states;
  averages.push_back({"averaged weights", size.averages});
  if (!on_gpu)
    needs.host.push_back({"scratch of attention",
                          size.attention * std::min(static_cast<double>(threads), size.attention_threads)});
  return needs;
}

void require_memory(const config::ResolvedConfig& resolved, const JobSize& size, const RankMemory& memory) {
  const MemoryNeeds needs = memory_needs(resolved.config, size, memory.device.has_value(), memory.threads);
  const std::vector<MemoryPart>&host = needs.host, &device = needs.device;
  config::Problems problems;
  const auto check = [&](const std::vector<MemoryPart>& needed, const MemoryLimit& limit) {
    if (total(needed) <= limit.bytes) return;
    if (&needed == &host && total(needed) - size.save_pool <= limit.bytes)
      return problems.add(
          resolved, "checkpoint.async_mode",
          fmt::format("each rank {}; set checkpoint.async_mode = \"disabled\", with which training "
                      "waits for each save",
                      describe_lack(needed, limit)));
    const double states = size.states() + size.peak.unsharded + size.peak.gathered + size.description;
    const double attention = memory.device ? 0
                                           : size.attention * std::min(static_cast<double>(memory.threads),
                                                                       size.attention_threads);
    const bool model = states > size.peak.activations + size.peak.working + attention + size.tokens;
    const bool has_sums = !memory.device || &needed == &device;
    const std::string key = model ? key_of_size(resolved, size.mostly_tables) : "training.seq_len";
    problems.add(resolved, key,
                 fmt::format("each rank {}; {}{}{}", describe_lack(needed, limit),
                             has_sums ? sharding_remedy(resolved.config, size) : "",
                             offloading_remedy(resolved.config, size, memory),
                             model ? "train a smaller model, or shard it over more ranks"
                                   : sequence_remedy(resolved.config)));
  };
  check(host, memory.host);
  if (memory.device) check(device, *memory.device);
  problems.throw_if_any("The configuration cannot be run");
}

void require_memory(const models::ModelArgs& model, double bytes_per_parameter, const RankMemory& memory) {
  const double weights = models::parameter_count(models::describe_model(model)) * bytes_per_parameter;
  constexpr double kDescriptionOfExpert = 3 * 200;  // the expert's three matrices in Hugging Face's layout
  std::vector<MemoryPart> host = {
      {"names and shapes", kDescriptionOfLayer * static_cast<double>(model.n_layers) +
                               kDescriptionOfExpert * static_cast<double>(model.experts.num_experts) *
                                   static_cast<double>(model.experts.blocks(model.n_layers))}};
  if (!memory.device) host.push_back({"weights", weights});
  if (total(host) > memory.host.bytes) throw_config("the model {}", describe_lack(host, memory.host));
  if (memory.device && weights > memory.device->bytes)
    throw_config("the model {}", describe_lack({{"weights", weights}}, *memory.device));
}

}  // namespace hyperion::trainer
