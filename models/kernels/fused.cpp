#include "models/kernels/fused.h"

#include <atomic>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "base/log.h"

namespace hyperion::kernels {
namespace {

std::atomic<KernelChoice> g_choice = KernelChoice::kAuto;

void log_once(const std::string& line) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::scoped_lock lock(mutex);
  if (logged.insert(line).second) log_info("{}", line);
}

}  // namespace

void choose_kernels(KernelChoice choice) {
  g_choice.store(choice, std::memory_order_relaxed);
}

KernelChoice chosen_kernels() {
  return g_choice.load(std::memory_order_relaxed);
}

bool has_fused_on_gpu(const char* kernel, const at::Tensor& t, const std::string& why_not) {
  if (!t.is_cuda() || chosen_kernels() == KernelChoice::kPlain) return false;
  const std::string reason =
      is_fused_dtype(t) ? why_not : fmt::format("tensors of dtype {}", c10::toString(t.scalar_type()));
  if (reason.empty()) return true;
  log_once(fmt::format("No fused {} for {}: its plain form runs instead", kernel, reason));
  return false;
}

}  // namespace hyperion::kernels
