#include "trainer/runtime/cpu_binding.h"

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

namespace hyperion::trainer {
namespace {

using Catch::Contains;

constexpr const char* kGpu = "0000:1b:00.0";

// A host with two nodes of four CPUs, whose GPU is on `node`.
void write_host(const test::TemporaryFolder& root, const std::string& node) {
  root.write("sys/devices/system/node/online", "0-1\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  root.write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  root.write(std::string("sys/bus/pci/devices/") + kGpu + "/numa_node", node + "\n");
}

const Cpus kAll = {0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace

TEST_CASE("lists of CPUs are read and written as sysfs writes them") {
  for (const char* list : {"", "0", "0-3", "0-1,4-5", "2,4,6-7"})
    CHECK(cpu_list(parse_cpu_list(list).value()) == list);
  CHECK(parse_cpu_list("0-1,4").value() == Cpus{0, 1, 4});
  for (const char* list : {"a", "1-", "-1", "3-2", "0-1-2", "0,,1", " 1", "0-99999999"}) {
    INFO(list);
    CHECK_FALSE(parse_cpu_list(list));
  }
}

TEST_CASE("a rank runs on the CPUs of its card's node that it may use") {
  const test::TemporaryFolder root;
  write_host(root, "1");
  const CpuChoice all = choose_cpus(kGpu, kAll, root.path());
  CHECK(all.cpus == Cpus{2, 3, 6, 7});
  CHECK(all.text == "NUMA node 1 of the GPU at 0000:1b:00.0 has CPUs 2-3,6-7: this rank runs on 2-3,6-7");
  CHECK(choose_cpus(kGpu, {0, 1, 2, 3}, root.path()).cpus == Cpus{2, 3});  // bound before by SLURM or taskset
  const CpuChoice far = choose_cpus(kGpu, {0, 4}, root.path());
  CHECK(far.cpus.empty());
  CHECK(far.wrong);
  CHECK_THAT(far.text, Contains("this rank may run on 0,4 alone") && Contains("crosses sockets"));
}

TEST_CASE("a rank is not bound where the system does not say where its card is, or has one node") {
  const test::TemporaryFolder root;
  CHECK(choose_cpus(kGpu, kAll, root.path()).text.empty());  // no sysfs
  write_host(root, "-1");
  const auto unbound = [&](const std::string& address) {
    const CpuChoice choice = choose_cpus(address, kAll, root.path());
    CHECK(choice.cpus.empty());
    CHECK_FALSE(choice.wrong);
    return choice.text;
  };
  CHECK_THAT(unbound(kGpu), Contains("0000:1b:00.0/numa_node says -1, a node without CPUs"));
  CHECK_THAT(unbound("0000:1c:00.0"), Contains("0000:1c:00.0/numa_node cannot be read"));
  CHECK_THAT(unbound(""), Contains("the driver does not say its PCI address"));
  write_host(root, "0");
  root.write("sys/devices/system/node/node0/cpulist", "\n");  // of memory alone
  CHECK_THAT(unbound(kGpu), Contains("says 0, a node without CPUs"));
  root.write("sys/devices/system/node/online", "0\n");
  CHECK(unbound(kGpu).empty());
}

}  // namespace hyperion::trainer
