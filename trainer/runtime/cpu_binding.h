// Which CPUs a rank on a GPU runs on: those of the NUMA node that its card is attached to, so that what it
// copies to and from the card, and the memory it pins, cross no link between sockets. Memory needs no policy:
// Linux takes a page from the node of the thread that first touches it.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace hyperion::trainer {

using Cpus = std::set<int>;

// A list as sysfs writes it, "0-31,64-95"; nullopt: no such list. An empty one has no CPU.
std::optional<Cpus> parse_cpu_list(std::string_view text);
std::string cpu_list(const Cpus& cpus);

struct CpuChoice {
  Cpus cpus;           // of the node and allowed; empty: the rank stays where it may run now
  std::string text;    // one line for the log; "": there is nothing to choose on this host
  bool wrong = false;  // the rank may use no CPU of its card's node
};

// For a card at `pci_address` ("0000:1b:00.0"; "": unknown) and a rank that may run on `allowed`, which the
// choice never leaves. `root` stands for /, where sys is read.
CpuChoice choose_cpus(const std::string& pci_address, const Cpus& allowed,
                      const std::filesystem::path& root = "/");

// Restricts this process, with the threads that it has and will have, to the CPUs chosen for the visible GPU
// `device`, and its loops to as many threads; logs that. Where OpenMP's variables bind threads it only logs
// so; HYPERION_NUMA = off: does nothing. Before CUDA makes threads and pins memory. Throws Error(kUsage) for
// another value than auto, off and "".
void bind_to_node_of_gpu(int device);

}  // namespace hyperion::trainer
