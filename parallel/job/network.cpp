#include "parallel/job/network.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/text.h"

namespace hyperion::parallel {
namespace {

std::string numeric_host(const sockaddr* address) {
  char host[NI_MAXHOST] = "";
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

struct LocalAddress {
  std::string interface, address;
  bool ipv4 = false, up = false, loopback = false;
};

std::vector<LocalAddress> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::vector<LocalAddress> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    const bool internet = family == AF_INET || family == AF_INET6;
    result.push_back({entry->ifa_name, internet ? numeric_host(entry->ifa_addr) : "", family == AF_INET,
                      (entry->ifa_flags & IFF_UP) != 0, (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return result;
}

// The local address that packets to `host` leave from; a connected UDP socket has it without sending any.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *addresses = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &addresses) != 0) return "";
  std::string result;
  for (const addrinfo* info = addresses; info != nullptr && result.empty(); info = info->ai_next) {
    const Descriptor fd(socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    if (fd && connect(fd.get(), info->ai_addr, info->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0)
      result = numeric_host(reinterpret_cast<const sockaddr*>(&local));
  }
  freeaddrinfo(addresses);
  return result;
}

std::string interface_of(const std::string& address) {
  for (const LocalAddress& local : local_addresses())
    if (local.address == address) return local.interface;
  return "";
}

NetworkInterface user_interface(const std::string& name) {
  std::set<std::string> present;
  for (const LocalAddress& local : local_addresses()) present.insert(local.interface);
  if (!present.contains(name)) {
    throw_config("GLOO_SOCKET_IFNAME names '{}', but this host has no such network interface: it has {}",
                 printable(name), fmt::join(present, ", "));
  }
  return {name, "", "as GLOO_SOCKET_IFNAME says"};
}

}  // namespace

std::vector<NetworkInterface> gloo_interfaces(const Environment& environment, std::string_view wanted) {
  if (!wanted.empty()) {
    std::vector<NetworkInterface> result;
    for (const std::string_view name : split(wanted, ','))
      result.push_back(user_interface(std::string(name)));
    return result;
  }
  if (environment.single_host()) {
    const bool ipv6_alone = interface_of("127.0.0.1").empty() && !interface_of("::1").empty();
    const std::string loopback = ipv6_alone ? "::1" : "127.0.0.1";
    return {{interface_of(loopback), loopback, "because all ranks are on this host"}};
  }
  if (const std::string address = address_towards(environment.master_addr);
      !address.empty() && !is_loopback(address)) {
    return {{interface_of(address), address,
             fmt::format("which leads to MASTER_ADDR {}", printable(environment.master_addr))}};
  }
  // A host whose own name resolves to 127.0.1.1 is its own master: the first address that others can reach.
  for (const LocalAddress& local : local_addresses()) {
    if (local.ipv4 && local.up && !local.loopback)
      return {{local.interface, local.address, "the first one that is up and not loopback"}};
  }
  throw_comm(
      "rank {}: this host has no network address that the other hosts can reach (MASTER_ADDR is {}); name "
      "the interface in GLOO_SOCKET_IFNAME",
      environment.rank, environment.master_addr);
}

std::vector<NetworkInterface> gloo_interfaces(const Environment& environment) {
  return gloo_interfaces(environment, environment_variable("GLOO_SOCKET_IFNAME").value_or(""));
}

std::vector<std::pair<std::string, std::string>> network_variables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    for (const std::string_view prefix : {"NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_"}) {
      if (text.starts_with(prefix)) variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  std::ranges::sort(variables);
  return variables;
}

void set_unless_user_did(const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) {
    const auto older = std::ranges::find(kOlderNames, name, &std::pair<const char*, const char*>::first);
    if (older == std::end(kOlderNames) || std::getenv(older->second) == nullptr)
      setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
}

std::vector<std::string> describe_network(const std::vector<NetworkInterface>& gloo, bool nccl,
                                          const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> interfaces, settings;
  for (const NetworkInterface& interface : gloo)
    interfaces.push_back(
        interface.address.empty()
            ? interface.name
            : fmt::format("{} ({})", interface.name.empty() ? "?" : interface.name, interface.address));
  std::string line = fmt::format("Network: Gloo on {}, {}", fmt::join(interfaces, " and "), gloo.front().why);
  std::vector<std::string> open = {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"};
  for (const auto& [name, value] : variables) {
    settings.push_back(name + "=" + escape_control_bytes(value));
    if (!value.empty()) std::erase(open, name);
  }
  if (nccl) {
    line += open.empty() ? "; NCCL as its variables say"
                         : fmt::format("; {} not set: NCCL chooses (NCCL_DEBUG=INFO shows what)",
                                       fmt::join(open, " and "));
  }
  std::vector<std::string> lines = {std::move(line)};
  if (!settings.empty())
    lines.push_back(fmt::format("Network variables that you set: {}", fmt::join(settings, " ")));
  return lines;
}

}  // namespace hyperion::parallel
