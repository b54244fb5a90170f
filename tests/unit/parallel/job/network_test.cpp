#include "parallel/job/network.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <catch2/catch.hpp>

#include "parallel/job/sockets.h"
#include "tests/support/error_of.h"

namespace hyperion::parallel {
namespace {

Environment two_hosts(const std::string& master) {
  Environment environment;
  environment.world_size = 2;
  environment.local_world_size = 1;
  environment.master_addr = master;
  return environment;
}

}  // namespace

TEST_CASE("ranks of one host talk over loopback unless the user names an interface") {
  const auto chosen = gloo_interfaces(Environment{}, "");
  REQUIRE(chosen.size() == 1);
  CHECK(chosen[0].name == "lo");
  CHECK(chosen[0].address == "127.0.0.1");
  const auto named = gloo_interfaces(two_hosts("127.0.0.1"), "lo,lo");
  REQUIRE(named.size() == 2);
  CHECK(named[1].name == "lo");
  CHECK(named[1].address.empty());
}

TEST_CASE("an interface that this host does not have is refused with those that it has") {
  const std::string error =
      error_of(ExitCode::kUsage, [] { gloo_interfaces(two_hosts("127.0.0.1"), "lo,no-such-if"); });
  CHECK_THAT(error, Catch::Contains("GLOO_SOCKET_IFNAME names 'no-such-if'") && Catch::Contains("lo"));
}

TEST_CASE("variables of NCCL that the user set stay as they are and are found by name") {
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  ::setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "7", 1);
  set_unless_user_did({{"TORCH_NCCL_DUMP_ON_TIMEOUT", "1"},
                       {"TORCH_FR_BUFFER_SIZE", "20000"},
                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}});
  CHECK(std::string(std::getenv("TORCH_NCCL_DUMP_ON_TIMEOUT")) == "0");
  CHECK(std::getenv("TORCH_FR_BUFFER_SIZE") == nullptr);
  CHECK(std::string(std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING")) == "3");
  using Variable = std::pair<std::string, std::string>;
  const auto found = network_variables();
  CHECK(std::find(found.begin(), found.end(), Variable{"TORCH_NCCL_TRACE_BUFFER_SIZE", "7"}) != found.end());
  for (const char* name :
       {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
    ::unsetenv(name);
}

TEST_CASE("the log of a start shows the interface and the variables that the user set") {
  const std::vector<NetworkInterface> ethernet = {
      {"eth0", "10.0.0.2", "which leads to MASTER_ADDR 10.0.0.1"}};
  using Lines = std::vector<std::string>;
  CHECK(describe_network(ethernet, false, {}) ==
        Lines{"Network: Gloo on eth0 (10.0.0.2), which leads to MASTER_ADDR 10.0.0.1"});
  CHECK(describe_network(ethernet, true, {{"NCCL_DEBUG", "INFO"}, {"NCCL_IB_HCA", "mlx5_0"}}) ==
        Lines{"Network: Gloo on eth0 (10.0.0.2), which leads to MASTER_ADDR 10.0.0.1; NCCL_SOCKET_IFNAME not "
              "set: "
              "NCCL chooses (NCCL_DEBUG=INFO shows what)",
              "Network variables that you set: NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5_0"});
  CHECK_THAT(
      describe_network(ethernet, true, {{"NCCL_IB_HCA", "mlx5"}, {"NCCL_SOCKET_IFNAME", "ib\x1b[31m"}})[1],
      !Catch::Contains("\x1b"));
  CHECK_THAT(describe_network({{"ib0", "", "as GLOO_SOCKET_IFNAME says"}}, true, {})[0],
             Catch::StartsWith(
                 "Network: Gloo on ib0, as GLOO_SOCKET_IFNAME says; NCCL_SOCKET_IFNAME and NCCL_IB_HCA "
                 "not set"));
}

TEST_CASE("a name that has no address is no lack of threads") {
  errno = EAGAIN;  // as the name server's socket leaves it
  CHECK_FALSE(connect_to("no-such-host.invalid", 1, std::chrono::milliseconds(100)));
  CHECK(errno == EADDRNOTAVAIL);
}

}  // namespace hyperion::parallel
