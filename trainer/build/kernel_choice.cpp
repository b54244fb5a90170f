#include "trainer/build/kernel_choice.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "models/kernels/kernels.h"
#include "models/kernels/matmul/grouped.h"
#include "models/parts/experts/description.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"

namespace hyperion::trainer {

void choose_kernels(const Float8Device& device) {
  constexpr int kFirstCapability = 80;  // the CUDA kernels are compiled for it and later ones
  const char* value = std::getenv("HYPERION_KERNELS");
  const std::string_view wanted = value == nullptr || *value == '\0' ? "auto" : value;
  if (wanted != "auto" && wanted != "plain")
    throw_config("HYPERION_KERNELS={}: expected auto (fused kernels where there are any) or plain", wanted);
  std::string why_plain;
  if (wanted == "plain")
    why_plain = "as HYPERION_KERNELS asks";
  else if (!device.cpu && device.compute_capability < kFirstCapability)
    why_plain = fmt::format("as {} has compute capability {}.{} and the fused ones need 8.0", device.name,
                            device.compute_capability / 10, device.compute_capability % 10);
  const kernels::KernelForms forms = kernels::choose_kernels(
      why_plain.empty() ? kernels::KernelChoice::kAuto : kernels::KernelChoice::kPlain,
      device.cpu ? at::kCPU : at::kCUDA);
  if (!why_plain.empty()) {
    log_info("Kernels of {}: plain, {}", fmt::join(forms.plain, ", "), why_plain);
  } else if (!device.cpu || !forms.plain.empty()) {
    std::string line = "Kernels: ";
    if (!forms.libtorchs.empty())
      line += fmt::format("libtorch's fused {}; ", fmt::join(forms.libtorchs, ", "));
    line += fmt::format("our fused {}", fmt::join(forms.ours, ", "));
    if (!forms.plain.empty()) line += fmt::format("; plain {}", fmt::join(forms.plain, ", "));
    log_info("{}", line);
  }
}

namespace {

// Returns whether all experts are FP8 or MXFP8, for which the log has lines of its own.
bool all_experts_in_float8(const models::ModelArgs& args, const config::JobConfig& config) {
  const auto& converted = config.quantize.grouped_mm;
  std::vector<std::string> parts;
  if (config::kGroupedFloat8.on(config)) parts = converted.float8.fqns;
  if (config::kGroupedMx.on(config)) parts = converted.mx.fqns;
  for (int64_t layer = 0; layer < args.n_layers; ++layer) {
    const std::string name = models::experts_name(layer);
    if (args.experts.are_in(layer) &&
        std::ranges::none_of(parts, [&](const std::string& part) { return name.find(part) != name.npos; }))
      return false;
  }
  return true;
}

}  // namespace

void log_expert_products(const models::ModelArgs& args, const config::JobConfig& config,
                         const Float8Device& device) {
  if (!args.experts.are_present() || device.cpu || all_experts_in_float8(args, config)) return;
  const bool exchanged = config::divides_experts(config);
  const auto& degrees = config.parallelism;
  const std::vector<int64_t> stack =
      models::describe_experts(args).parameters.front().dims;  // gate's, or gate's and up's
  const kernels::GroupedShape shape{
      .groups = stack[0] / (exchanged ? degrees.expert_parallel_degree : 1),
      .k = stack[2],
      .j = stack[1] / (exchanged ? degrees.expert_tensor_parallel_degree : degrees.tensor_parallel_degree)};
  const char* why = kernels::why_not_at_once(
      checkpointing::scalar_type(config.training.mixed_precision_param), device.compute_capability, shape);
  if (why == nullptr)
    log_info("Experts: {}",
             exchanged
                 ? "those of a rank in a layer in one product; the host waits once for the counts of "
                   "tokens that ranks exchange"
                 : "all of a layer in one product, and the host does not wait for their counts of tokens");
  else
    log_info(
        "Experts: multiplied one by one, and in each layer the host waits once for their counts of "
        "tokens: {}",
        why);
}

}  // namespace hyperion::trainer
