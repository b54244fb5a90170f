#include "trainer/runtime/cpu_binding.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sched.h>
#include <strings.h>

#include <ATen/Parallel.h>

#include "base/device/device.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"

namespace hyperion::trainer {
namespace fs = std::filesystem;
namespace {

constexpr int kMaxCpus = 8192;  // of Linux

std::optional<std::string> first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  return std::getline(stream, line) ? std::optional(line) : std::nullopt;
}

Cpus in_both(const Cpus& a, const Cpus& b) {
  Cpus both;
  std::ranges::set_intersection(a, b, std::inserter(both, both.end()));
  return both;
}

struct CpuMask {
  std::vector<cpu_set_t> words = std::vector<cpu_set_t>(kMaxCpus / CPU_SETSIZE);
  size_t bytes() const { return words.size() * sizeof(cpu_set_t); }
};

// Returns the CPUs allowed to a thread (0: the calling one). Empty if the system does not say.
Cpus affinity_of(pid_t thread) {
  CpuMask mask;
  Cpus cpus;
  if (::sched_getaffinity(thread, mask.bytes(), mask.words.data()) != 0) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu)
    if (CPU_ISSET_S(cpu, mask.bytes(), mask.words.data())) cpus.insert(cpu);
  return cpus;
}

// Returns errno, or 0.
int set_affinity(pid_t thread, const Cpus& cpus) {
  CpuMask mask;
  for (const int cpu : cpus) CPU_SET_S(cpu, mask.bytes(), mask.words.data());
  return ::sched_setaffinity(thread, mask.bytes(), mask.words.data()) == 0 ? 0 : errno;
}

// Returns the variable by which OpenMP binds threads to CPUs (this thread to the first); "" if it binds none.
std::string variable_that_binds() {
  const auto value = [](const char* name) { return environment_variable(name).value_or(""); };
  if (::strcasecmp(value("OMP_PROC_BIND").c_str(), "false") != 0)
    for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"})
      if (!value(name).empty()) return name;
  return "";
}

}  // namespace

std::optional<Cpus> parse_cpu_list(std::string_view text) {
  Cpus cpus;
  if (text.empty()) return cpus;
  for (const std::string_view range : split(text, ',')) {
    const std::vector<std::string_view> ends = split(range, '-');
    const auto first = parse_number<int>(ends.front()), last = parse_number<int>(ends.back());
    if (ends.size() > 2 || !first || !last || *first < 0 || *last < *first || *last >= kMaxCpus)
      return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::string cpu_list(const Cpus& cpus) {
  std::string list;
  for (auto first = cpus.begin(); first != cpus.end();) {
    auto last = first;
    while (std::next(last) != cpus.end() && *std::next(last) == *last + 1) ++last;
    list += list.empty() ? "" : ",";
    list += *first == *last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
    first = std::next(last);
  }
  return list;
}

CpuChoice choose_cpus(const std::string& pci_address, const Cpus& allowed, const fs::path& root) {
  const fs::path nodes = root / "sys/devices/system/node";
  const auto online = parse_cpu_list(first_line(nodes / "online").value_or(""));
  if (!online || online->size() < 2) return {};
  const auto unbound = [](const std::string& why) {
    return CpuChoice{{}, "CPUs: not bound to those of the GPU, because " + why};
  };
  if (pci_address.empty()) return unbound("the driver does not say its PCI address");
  const fs::path file = root / "sys/bus/pci/devices" / pci_address / "numa_node";
  const std::optional<std::string> node = first_line(file);
  if (!node) return unbound(fmt::format("{} cannot be read", file.string()));
  const auto cpus = parse_cpu_list(first_line(nodes / ("node" + *node) / "cpulist").value_or(""));
  if (!cpus || cpus->empty())
    return unbound(fmt::format("{} says {}, a node without CPUs", file.string(), *node));
  const std::string where =
      fmt::format("NUMA node {} of the GPU at {} has CPUs {}", *node, pci_address, cpu_list(*cpus));
  Cpus both = in_both(*cpus, allowed);
  if (both.empty())
    return {{},
            fmt::format("{}, and this rank may run on {} alone: what it copies to and from the GPU crosses "
                        "sockets; bind ranks near their GPUs (srun --cpu-bind, taskset), or not at all",
                        where, cpu_list(allowed)),
            true};
  const std::string taken = fmt::format("{}: this rank runs on {}", where, cpu_list(both));
  return {std::move(both), taken};
}

void bind_to_node_of_gpu(int device) {
  const std::string wanted = environment_variable("HYPERION_NUMA").value_or("");
  if (!wanted.empty() && wanted != "auto" && wanted != "off")
    throw_config("HYPERION_NUMA is '{}', expected auto or off", wanted);
  if (wanted == "off") return;
  const CpuChoice choice = choose_cpus(pci_address(device), affinity_of(0));
  if (choice.text.empty()) return;
  if (const std::string variable = variable_that_binds(); !variable.empty())
    return log_info("CPUs: not bound to those of the GPU, because {} is set, by which OpenMP binds threads",
                    variable);
  if (choice.wrong) return log_warning("{}", choice.text);
  if (!choice.cpus.empty()) {
    // Each thread is bound separately: a thread that has fewer CPUs than the process stays within them.
    std::error_code unread;
    fs::directory_iterator entry("/proc/self/task", unread);
    for (; !unread && entry != fs::directory_iterator(); entry.increment(unread)) {
      const pid_t thread = parse_number<pid_t>(entry->path().filename().native()).value_or(0);
      const Cpus near = in_both(affinity_of(thread), choice.cpus);
      const int error = near.empty() ? 0 : set_affinity(thread, near);
      if (error != 0 && error != ESRCH)  // which has ended
        return log_warning("CPUs: not bound to {}: sched_setaffinity: {}", cpu_list(choice.cpus),
                           errno_text(error));
    }
    if (unread)
      return log_warning("CPUs: not bound to {}: /proc/self/task: {}", cpu_list(choice.cpus),
                         unread.message());
    const int threads = static_cast<int>(choice.cpus.size());
    if (at::get_num_threads() > threads) at::set_num_threads(threads);
  }
  log_info("{}", choice.text);
}

}  // namespace hyperion::trainer
