// TCP connections between ranks that our own code opens.
#pragma once

#include <chrono>
#include <string>

#include "base/durable.h"

namespace hyperion::parallel {

// Throws Error(kUsage): rank 0 cannot listen on that port.
[[noreturn]] void throw_port_in_use(const std::string& host, int port);

// Opens a socket that listens on `port` of the first address of `host` that this host has; returns -1 if it
// has none of them. Throws Error(kUsage) if the port is in use, std::system_error if no more files can be
// opened.
int listen_on(const std::string& host, int port);

// Opens a non-blocking socket, connected to the first address of `host` that answers within `timeout`;
// returns an empty descriptor and sets errno if none does.
Descriptor connect_to(const std::string& host, int port, std::chrono::milliseconds timeout);

// Returns whether the socket is bound to the loopback address.
bool is_loopback(int socket);

}  // namespace hyperion::parallel
