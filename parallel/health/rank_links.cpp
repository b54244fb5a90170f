#include "parallel/health/rank_links.h"

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
#include <sys/un.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/rank_list.h"
#include "parallel/job/sockets.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;

// Keys of the store.
constexpr const char* kRank0 = "watch/rank0";  // "PORT TOKEN", for other hosts; empty: rank 0 cannot listen
std::string address_key(int rank) {            // "NAME TOKEN HOST", for its own host; empty: it cannot listen
  return fmt::format("watch/{}", rank);
}
std::string connected_key(int rank) {  // it has connected to the ranks of its host before it
  return fmt::format("watches/{}", rank);
}

constexpr size_t kMaxLine = 4096;

std::string lost_line(const std::set<int>& ranks, bool failed) {
  return fmt::format("{} {}\n", failed ? "failed" : "ended", fmt::join(ranks, " "));
}

std::string random_word() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Returns what `request` reads from the store; `whom` names the rank that writes it.
auto await(int own_rank, const std::string& whom, const auto& request) {
  try {
    return request();
  } catch (const c10::Error&) {
    throw_comm("rank {}: {} met the others, but did not start; see its log", own_rank, whom);
  }
}

// --- sockets ---

// Opens a Unix socket that listens on, or connects to, a name of this host; returns an empty descriptor on
// failure. The name is in the abstract namespace, so no file is left behind.
Descriptor local_socket(const std::string& name, bool listens) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = socket.get();
  const bool succeeded = listens ? ::bind(fd, at, sizeof address) == 0 && ::listen(fd, SOMAXCONN) == 0
                                 : ::connect(fd, at, sizeof address) == 0;
  return succeeded ? std::move(socket) : Descriptor();
}

// Without keepalive only the end of a process is noticed, not that of a host.
void enable_keepalive(int socket) {
  constexpr int kProbes = 3,
                kInterval = static_cast<int>(RankLinks::kKeepaliveTimeout.count()) / (kProbes + 1);
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kInterval);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds(RankLinks::kKeepaliveTimeout).count()));
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

void send_to(int socket, const std::string& line) {
  ::send(socket, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

RankLinks::RankLinks(c10d::Store& store, const Environment& environment, milliseconds timeout,
                     bool timeout_is_loss)
    : own_rank_(environment.rank),
      timeout_is_loss_(timeout_is_loss),
      relays_(!environment.single_host() && (environment.rank == 0 || environment.local_rank == 0)),
      token_(random_word()) {
  connect_ranks_of_host(store, environment, timeout);
  if (relays_ && own_rank_ == 0) listen_for_hosts(store, environment);
  if (!relays_ || own_rank_ == 0) return;
  const std::string address = await(own_rank_, "rank 0", [&] {
    store.wait({kRank0}, timeout);
    return store.get_to_str(kRank0);
  });
  connect_to_rank_0(address, environment, timeout);
}

// Launchers number the ranks of a host consecutively; where SLURM does not, the host's name in the address
// does not match, and only the timeout ends a job that has lost a rank.
void RankLinks::connect_ranks_of_host(c10d::Store& store, const Environment& environment,
                                      milliseconds timeout) {
  const int first = std::max(0, own_rank_ - environment.local_rank);
  const int end = std::min(environment.world_size, first + environment.local_world_size);
  const auto await_rank = [&](int rank, const auto& request) {
    return await(own_rank_, fmt::format("rank {} of this host", rank), request);
  };
  const std::string own_name = random_word();
  host_listener_ = local_socket(own_name, /*listens=*/true);
  store.set(address_key(own_rank_),
            host_listener_ ? fmt::format("{} {} {}", own_name, token_, host_name()) : "");
  for (int rank = first; rank < own_rank_; ++rank) {
    std::istringstream address(await_rank(rank, [&] {
      store.wait({address_key(rank)}, timeout);
      return store.get_to_str(address_key(rank));
    }));
    std::string name, token, host;
    address >> name >> token >> host;
    Descriptor socket = host == host_name() ? local_socket(name, /*listens=*/false) : Descriptor();
    if (!socket) continue;
    send_to(socket.get(), fmt::format("{} {}\n", token, own_rank_));
    links_.push_back({.socket = std::move(socket), .same_host = true, .rank = rank});
  }
  store.set(connected_key(own_rank_), "");
  for (int rank = first; rank < end; ++rank)
    await_rank(rank, [&] { store.wait({connected_key(rank)}, timeout); });
  poll();  // reads the peers' ranks
  std::vector<int> unreachable;
  for (int rank = first; rank < end; ++rank)
    if (rank != own_rank_ && !ended_.contains(rank) && !failed_.contains(rank) &&
        std::ranges::find(links_, rank, &Link::rank) == links_.end())
      unreachable.push_back(rank);
  if (unreachable.empty()) host_listener_ = Descriptor();
  if (!unreachable.empty() && timeout_is_loss_)
    log_warning(
        "rank {} cannot see whether rank {} is alive (another host, or a container of its own): if it is "
        "killed, this rank ends when comm.train_timeout_seconds have passed",
        own_rank_, rank_list(unreachable));
}

void RankLinks::listen_for_hosts(c10d::Store& store, const Environment& environment) {
  listener_ = Descriptor(listen_on(environment.master_addr, 0));
  // As in the rendezvous, an address that other hosts cannot reach is not the one that they know.
  if (!listener_ || is_loopback(listener_.get())) listener_ = Descriptor(listen_on("::", 0));
  if (!listener_) listener_ = Descriptor(listen_on("0.0.0.0", 0));
  if (!listener_) {
    log_warning(
        "rank 0 cannot listen for other hosts ({}): a rank that is lost on another host may be noticed only "
        "when comm.train_timeout_seconds have passed",
        errno_text(errno));
    return store.set(kRank0, "");
  }
  store.set(kRank0, fmt::format("{} {}", port_of(listener_.get()), token_));
}

void RankLinks::connect_to_rank_0(const std::string& address, const Environment& environment,
                                  milliseconds timeout) {
  if (address.empty()) return;  // rank 0 has said why
  const size_t space = address.find(' ');
  const std::string port = address.substr(0, space);
  Descriptor socket = connect_to(environment.master_addr, std::stoi(port), timeout);
  if (!socket)
    return log_warning(
        "rank {} cannot connect to port {} of rank 0's host {} ({}): a rank that is lost on another host may "
        "be noticed only when comm.train_timeout_seconds have passed",
        own_rank_, port, environment.master_addr, errno_text(errno));
  enable_keepalive(socket.get());
  send_to(socket.get(), fmt::format("{} {}\n", address.substr(space + 1), own_rank_));
  links_.push_back({.socket = std::move(socket), .rank = 0});
}

void RankLinks::accept_from(const Descriptor& listener, bool same_host) {
  while (listener) {
    pollfd wait = {listener.get(), POLLIN, 0};
    if (::poll(&wait, 1, 0) != 1) return;
    Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (!same_host) enable_keepalive(socket.get());
    links_.push_back({.socket = std::move(socket), .same_host = same_host});
  }
}

LostRanks RankLinks::poll() {
  accept_from(host_listener_, /*same_host=*/true);
  accept_from(listener_, /*same_host=*/false);
  std::vector<pollfd> waits;
  for (const Link& link : links_) waits.push_back({link.socket.get(), POLLIN, 0});
  if (::poll(waits.data(), waits.size(), 0) <= 0) waits.clear();
  for (size_t i = 0; i < waits.size(); ++i) {
    Link& link = links_[i];
    const bool ended = waits[i].revents != 0 && read(link);
    bool known = true;
    for (size_t end; known && (end = link.unread.find('\n')) != std::string::npos;) {
      const std::string line = link.unread.substr(0, end);
      link.unread.erase(0, end + 1);
      known = take_line(link, line);
    }
    if (ended && link.rank >= 0 && !link.has_left) note_end(link);
    if (ended || !known || link.unread.size() > kMaxLine) link.socket = {};
  }
  std::erase_if(links_, [](const Link& link) { return !link.socket; });
  const std::set<int>& lost = ended_.empty() ? failed_ : ended_;
  return {{lost.begin(), lost.end()}, ended_.empty()};
}

bool RankLinks::read(Link& link) {
  for (char bytes[1024];;) {
    const ssize_t count = ::recv(link.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (count > 0) link.unread.append(bytes, static_cast<size_t>(count));
    const bool failed = count < 0 && errno != EAGAIN && errno != EINTR;
    link.broken = failed && !link.same_host;
    if (count == 0 || failed) return true;
    if (count < 0 || link.unread.size() > kMaxLine) return false;
  }
}

// Handles "TOKEN RANK" first, then "ended RANKS", "failed RANKS" or "done". Returns false if the connection
// does not belong to the job.
bool RankLinks::take_line(Link& link, const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  std::set<int> ranks;
  for (int rank = 0; words >> rank;) ranks.insert(rank);
  if (link.rank < 0) {
    if (word == token_ && ranks.size() == 1) link.rank = *ranks.begin();
    return link.rank >= 0;
  }
  const bool failed = word == "failed";
  link.has_left |= failed ? ranks.contains(link.rank) : word == "done";
  if (failed || word == "ended") note(ranks, failed, link);
  return true;
}

void RankLinks::note_end(Link& link) {
  if (timeout_is_loss_ || !link.broken) return note({link.rank}, /*failed=*/false, link);
  log_warning(
      "rank {}: the connection to rank {}'s host has broken: a rank that is lost there may be noticed only "
      "when comm.train_timeout_seconds have passed",
      own_rank_, link.rank);
}

void RankLinks::note(const std::set<int>& ranks, bool failed, const Link& from) {
  (failed ? failed_ : ended_).insert(ranks.begin(), ranks.end());
  for (const Link& link : links_)
    if (link.socket && &link != &from && (link.same_host != from.same_host || !link.same_host))
      send_to(link.socket.get(), lost_line(ranks, failed));
}

// A connection that accepts no line has closed, or its host is gone: poll() notices it.
void RankLinks::send(End end) {
  accept_from(listener_, /*same_host=*/false);
  for (const Link& link : links_)
    send_to(link.socket.get(), end == End::kDone ? "done\n" : lost_line({own_rank_}, /*failed=*/true));
}

}  // namespace hyperion::parallel
