// A port that no other program is given as long as this test wants it.
#pragma once

#include <stdexcept>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/durable.h"

namespace hyperion::test {

// Holds a port of 127.0.0.1 by a socket that does not listen: a connection to it is refused until somebody
// who knows the number listens there, with SO_REUSEADDR as all servers do.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        ::bind(socket_.get(), generic, length) != 0 || ::getsockname(socket_.get(), generic, &length) != 0)
      throw std::runtime_error("no port of 127.0.0.1");
    number_ = ntohs(address.sin_port);
  }
  int number() const { return number_; }

 private:
  Descriptor socket_;
  int number_ = 0;
};

}  // namespace hyperion::test
