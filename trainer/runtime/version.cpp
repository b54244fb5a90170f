#include "trainer/runtime/version.h"

#include <fmt/format.h>

#include <torch/version.h>

#include "trainer/metrics/run_folder.h"

namespace hyperion::trainer {

std::string version_text() {
  return fmt::format("hyperion {} ({})\ncompiler {}\nlibtorch {}\nCUDA {}\nNCCL {}\nfmt {}.{}.{}\n",
                     HYPERION_VERSION, metrics::source_commit(), HYPERION_COMPILER, TORCH_VERSION,
                     HYPERION_CUDA_VERSION, HYPERION_NCCL_VERSION, FMT_VERSION / 10000,
                     FMT_VERSION / 100 % 100, FMT_VERSION % 100);
}

}  // namespace hyperion::trainer
