#include "parallel/job/sockets.h"

#include <cerrno>
#include <memory>
#include <system_error>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{}, *addresses = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses) != 0) {
    addresses = nullptr;
    // A name server that does not answer leaves its socket's errno, EAGAIN, which does not mean a lack of
    // threads.
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM) errno = EADDRNOTAVAIL;
  }
  return {addresses, ::freeaddrinfo};
}

// Connects within `timeout`, or returns an empty descriptor and sets errno.
Descriptor connect_to(const addrinfo& info, milliseconds timeout) {
  Descriptor socket(::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::connect(socket.get(), info.ai_addr, info.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return {};
  pollfd wait = {socket.get(), POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t length = sizeof error;
  if (::poll(&wait, 1, static_cast<int>(timeout.count())) == 1)
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error == 0) return socket;
  errno = error;
  return {};
}

}  // namespace

void throw_port_in_use(const std::string& host, int port) {
  throw_config("rank 0 cannot listen on MASTER_PORT {} of {}: the port is in use; choose another one", port,
               host);
}

int listen_on(const std::string& host, int port) {
  const Addresses addresses = addresses_of(host, port);
  for (const addrinfo* info = addresses.get(); info != nullptr; info = info->ai_next) {
    Descriptor socket(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (!socket && (errno == EMFILE || errno == ENFILE))
      throw std::system_error(errno, std::generic_category());
    if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0) continue;
    if (::bind(socket.get(), info->ai_addr, info->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
      return socket.release();
    if (errno == EADDRINUSE) throw_port_in_use(host, port);
  }
  return -1;
}

Descriptor connect_to(const std::string& host, int port, milliseconds timeout) {
  errno = EADDRNOTAVAIL;
  const Addresses addresses = addresses_of(host, port);
  Descriptor socket;
  for (const addrinfo* info = addresses.get(); info != nullptr && !socket; info = info->ai_next)
    socket = connect_to(*info, timeout);
  return socket;
}

bool is_loopback(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  if (address.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
}

}  // namespace hyperion::parallel
