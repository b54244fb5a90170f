// MetricsServer answers GET /metrics by HTTP, for Prometheus. Its clients are hostile until they have asked:
// one thread of the lowest priority polls, never blocks, and has a bound for connections, bytes and seconds.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/durable.h"

namespace hyperion::metrics {

// Opens the socket of metrics.prometheus_host and metrics.prometheus_port. Throws Error(kUsage), naming the
// key, if the host is none of this machine's or the port is in use.
Descriptor listen_for_prometheus(const std::string& host, int port);

struct MetricsServerLimits {
  size_t connections = 16;                                              // of one more, the oldest is closed
  size_t request_bytes = 8192;                                          // up to the empty line
  std::chrono::milliseconds connection_time = std::chrono::seconds(5);  // from accept to the last byte
  std::chrono::milliseconds round = std::chrono::milliseconds(10);      // between two looks at the sockets
  size_t accepts_per_round = 8;
};

class MetricsServer {
 public:
  // `listener` is what listen_for_prometheus() returns. `text` makes the answer, on the server's thread.
  MetricsServer(Descriptor listener, std::function<std::string()> text, MetricsServerLimits limits = {});
  ~MetricsServer();  // open connections are closed
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  Descriptor stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace hyperion::metrics
