// Connections of TCP between the ranks of a job that its own code makes.
#pragma once

#include <chrono>
#include <string>

#include "base/durable.h"

namespace hyperion::parallel {

// Error(kUsage): rank 0 cannot listen there.
[[noreturn]] void throw_port_in_use(const std::string& host, int port);

// A socket that listens on `port` of `host`, the first of its addresses that this host has; -1 when it has
// none of them. Throws Error(kUsage) when the port is in use, std::system_error when no more files can be
// opened.
int listen_on(const std::string& host, int port);

// A socket that does not block, connected to the first address of `host` that answers within `timeout`; none,
// and errno, where none does.
Descriptor connect_to(const std::string& host, int port, std::chrono::milliseconds timeout);

// Whether the address that a socket is bound to is the loopback one.
bool is_loopback(int socket);

}  // namespace hyperion::parallel
