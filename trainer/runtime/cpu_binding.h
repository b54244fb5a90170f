// Binds a rank on a GPU to the CPUs of the card's NUMA node, so that copies to and from the card, and pinned
// memory, cross no link between sockets. Memory needs no policy: Linux allocates a page on the node of the
// thread that first touches it.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace hyperion::trainer {

using Cpus = std::set<int>;

// Parses a list in sysfs format, "0-31,64-95"; an empty text is an empty list. Returns nullopt for other
// text.
std::optional<Cpus> parse_cpu_list(std::string_view text);
std::string cpu_list(const Cpus& cpus);

struct CpuChoice {
  Cpus cpus;           // allowed CPUs of the node; empty: no change
  std::string text;    // one line for the log; "" if the host offers no choice
  bool wrong = false;  // no CPU of the card's node is allowed
};

// Chooses among `allowed` for the card at `pci_address` ("0000:1b:00.0"; "" if unknown). Reads sys below
// `root`.
CpuChoice choose_cpus(const std::string& pci_address, const Cpus& allowed,
                      const std::filesystem::path& root = "/");

// Binds all present and future threads of this process to the CPUs chosen for the visible GPU `device`,
// limits parallel loops to as many threads, and logs that. If OpenMP's variables bind threads, it only logs
// that. With HYPERION_NUMA = off it does nothing. Call it before CUDA creates threads and pins memory. Throws
// Error(kUsage) if HYPERION_NUMA is not auto, off or "".
void bind_to_node_of_gpu(int device);

}  // namespace hyperion::trainer
