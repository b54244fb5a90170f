#include "trainer/kernel_choice.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "models/kernels/kernels.h"
#include "models/kernels/matmul/grouped.h"
#include "trainer/checkpointing/job_state.h"
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

void log_expert_products(const models::ModelArgs& args, const config::JobConfig& config,
                         const Float8Device& device) {
  const bool in_float8 = config::kGroupedFloat8.on(config) || config::kGroupedMx.on(config);
  if (args.num_experts == 0 || device.cpu || in_float8) return;  // FP8 has lines of its own
  const kernels::GroupedShape shape{.groups = args.num_experts,
                                    .k = args.dim,
                                    .j = args.moe_hidden_dim / config.parallelism.tensor_parallel_degree};
  const char* why =
      config::divides_experts(config)
          ? "expert_parallel_degree divides them"
          : kernels::why_not_at_once(checkpointing::scalar_type(config.training.mixed_precision_param),
                                     device.compute_capability, shape);
  if (why == nullptr)
    log_info("Experts: all of a layer in one product, and the host does not wait for their counts of tokens");
  else
    log_info(
        "Experts: multiplied one by one, and in each layer the host waits once for their counts of "
        "tokens: {}",
        why);
}

}  // namespace hyperion::trainer
