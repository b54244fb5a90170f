#include "parallel/host_links.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/log.h"
#include "parallel/rendezvous.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;

constexpr const char* kAddressKey = "watch/rank0";  // "PORT TOKEN"; empty: rank 0 cannot listen
constexpr size_t kLongestLine = 4096;
constexpr const char* kDone = "done\n";

void set_option(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value,
               sizeof value);  // without it only a process that ends is noticed
}

void watch_connection(int socket) {
  constexpr int kProbes = 3;
  const int interval = static_cast<int>(HostLinks::kSilence.count()) / (kProbes + 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(milliseconds(HostLinks::kSilence).count()));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string make_token() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

HostLinks::HostLinks(c10d::Store& store, const Environment& environment, milliseconds timeout,
                     bool silence_is_loss)
    : own_rank_(environment.rank), silence_is_loss_(silence_is_loss) {
  if (own_rank_ == 0) {
    listen(store, environment);
    return;
  }
  std::string address;
  try {
    store.wait({kAddressKey}, timeout);
    address = store.get_to_str(kAddressKey);
  } catch (const c10::Error&) {
    throw_comm("rank {}: rank 0 met the others, but did not start; see its log", own_rank_);
  }
  connect(address, environment, timeout);
}

void HostLinks::listen(c10d::Store& store, const Environment& environment) {
  token_ = make_token();
  listener_ = Descriptor(listen_on(environment.master_addr, 0));
  // As the rendezvous: an address that other hosts cannot reach is not the one that they know.
  if (!listener_ || is_loopback(listener_.get())) listener_ = Descriptor(listen_on("::", 0));
  if (!listener_) listener_ = Descriptor(listen_on("0.0.0.0", 0));
  if (!listener_) {
    log_warning(
        "rank 0 cannot listen for other hosts ({}): a rank that is lost on another host may be noticed only "
        "when comm.train_timeout_seconds have passed",
        errno_text(errno));
    return store.set(kAddressKey, "");
  }
  store.set(kAddressKey, fmt::format("{} {}", port_of(listener_.get()), token_));
}

void HostLinks::connect(const std::string& address, const Environment& environment, milliseconds timeout) {
  if (address.empty()) return;  // rank 0 has said why
  const size_t space = address.find(' ');
  const std::string port = address.substr(0, space);
  Descriptor socket = connect_to(environment.master_addr, std::stoi(port), timeout);
  if (!socket)
    return log_warning(
        "rank {} cannot connect to port {} of rank 0's host {} ({}): a rank that is lost on another host may "
        "be noticed only when comm.train_timeout_seconds have passed",
        own_rank_, port, environment.master_addr, errno_text(errno));
  watch_connection(socket.get());
  links_.push_back({.socket = std::move(socket), .rank = 0});
  send(fmt::format("{} {}\n", address.substr(space + 1), own_rank_));
}

void HostLinks::accept_links() {
  while (listener_) {
    pollfd wait = {listener_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 0) != 1) return;
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    watch_connection(socket.get());
    links_.push_back({.socket = std::move(socket)});
  }
}

std::vector<HostLinks::Loss> HostLinks::news() {
  accept_links();
  std::vector<pollfd> waits;
  for (const Link& link : links_) waits.push_back({link.socket.get(), POLLIN, 0});
  std::vector<Loss> losses;
  if (waits.empty() || ::poll(waits.data(), waits.size(), 0) <= 0) return losses;
  const auto pass_on = [&](const Loss& loss, const Link& from) {
    losses.push_back(loss);
    if (own_rank_ == 0) send(loss_line(loss), &from);
  };
  for (size_t i = 0; i < waits.size(); ++i) {
    Link& link = links_[i];
    const bool ended = waits[i].revents != 0 && read(link);
    bool known = true;
    for (size_t end; known && (end = link.unread.find('\n')) != std::string::npos;) {
      const std::string line = link.unread.substr(0, end);
      link.unread.erase(0, end + 1);
      if (const auto loss = take_line(link, line)) pass_on(*loss, link);
      known = link.rank >= 0;
    }
    if (ended && link.rank >= 0 && !link.has_told) {
      if (silence_is_loss_ || !link.broken)
        pass_on({{link.rank}, false}, link);
      else
        log_warning(
            "rank {}: the connection to rank {}'s host has broken: a rank that is lost there may be noticed "
            "only when comm.train_timeout_seconds have passed",
            own_rank_, link.rank);
    }
    if (ended || !known || link.unread.size() > kLongestLine) link.socket = {};
  }
  std::erase_if(links_, [](const Link& link) { return !link.socket; });
  return losses;
}

bool HostLinks::read(Link& link) {
  for (char bytes[1024];;) {
    const ssize_t count = ::recv(link.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (count > 0) link.unread.append(bytes, static_cast<size_t>(count));
    link.broken = count < 0 && errno != EAGAIN && errno != EINTR;
    if (count == 0 || link.broken) return true;
    if (count < 0 || link.unread.size() > kLongestLine) return false;
  }
}

// "TOKEN RANK" first, then "ended RANKS", "failed RANKS" or "done".
std::optional<HostLinks::Loss> HostLinks::take_line(Link& link, const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (link.rank < 0) {
    int rank = -1;
    if (word == token_ && words >> rank) link.rank = rank;
    return std::nullopt;
  }
  link.has_told = true;
  if (word != "ended" && word != "failed") return std::nullopt;
  Loss loss{{}, word == "failed"};
  for (int rank = 0; words >> rank;) loss.ranks.push_back(rank);
  return loss;
}

std::string HostLinks::loss_line(const Loss& loss) {
  return fmt::format("{} {}\n", loss.failed ? "failed" : "ended", fmt::join(loss.ranks, " "));
}

void HostLinks::tell(const Loss& loss) {
  accept_links();
  send(loss_line(loss));
}

void HostLinks::tell_done() {
  accept_links();
  send(kDone);
}

// A connection that takes no line has ended, or its host is gone: news() sees it.
void HostLinks::send(const std::string& line, const Link* except) {
  for (const Link& link : links_)
    if (&link != except && link.socket)
      ::send(link.socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace hyperion::parallel
