#include "trainer/metrics/metrics_server.h"

#include <cerrno>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/text.h"

namespace hyperion::metrics {
namespace {

using Clock = std::chrono::steady_clock;

struct Connection {
  Descriptor socket;
  Clock::time_point deadline;
  std::string request{}, answer{};
  size_t sent = 0;
  bool done = false;
};

std::string answer_of(std::string_view status, std::string_view headers, std::string_view body,
                      bool with_body) {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{}", status, headers,
                     body.size(), with_body ? body : "");
}

std::string refusal(std::string_view status, std::string_view headers, std::string_view body) {
  return answer_of(status, fmt::format("Content-Type: text/plain; charset=utf-8\r\n{}", headers), body,
                   /*with_body=*/true);
}

bool head_is_complete(std::string_view request) {
  return request.find("\r\n\r\n") != request.npos || request.find("\n\n") != request.npos;
}

class Server {
 public:
  Server(Descriptor listener, int stop, std::function<std::string()> text, MetricsServerLimits limits)
      : listener_(std::move(listener)), stop_(stop), text_(std::move(text)), limits_(limits) {}

  void run() {
    while (wait()) {
      accept_clients();
      body_.reset();
      for (Connection& connection : connections_) serve(connection);
      const auto now = Clock::now();
      std::erase_if(connections_, [&](const Connection& c) { return c.done || now >= c.deadline; });
      pollfd stop = {stop_, POLLIN, 0};  // clients in a hurry cost a look at the sockets per round
      if (::poll(&stop, 1, static_cast<int>(limits_.round.count())) == 1) return;
    }
  }

 private:
  // Waits for a client, until the next deadline; false: the server is to stop.
  bool wait() {
    std::vector<pollfd> waits = {{stop_, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    int timeout = -1;
    for (const Connection& c : connections_)
      waits.push_back({c.socket.get(), static_cast<short>(c.answer.empty() ? POLLIN : POLLOUT), 0});
    if (!connections_.empty()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(connections_.front().deadline - Clock::now());
      timeout = std::max(0, static_cast<int>(left.count()));
    }
    ::poll(waits.data(), waits.size(), timeout);
    return waits[0].revents == 0;
  }

  void accept_clients() {
    for (size_t i = 0; i < limits_.accepts_per_round; ++i) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return;
      if (connections_.size() == limits_.connections) connections_.pop_front();
      connections_.push_back(
          {.socket = std::move(socket), .deadline = Clock::now() + limits_.connection_time});
    }
  }

  void serve(Connection& connection) {
    if (connection.answer.empty() && !read_request(connection)) return;
    const ssize_t n = ::send(connection.socket.get(), connection.answer.data() + connection.sent,
                             connection.answer.size() - connection.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) connection.sent += static_cast<size_t>(n);
    connection.done = connection.sent == connection.answer.size() ||
                      (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  // Returns whether there is an answer to send.
  bool read_request(Connection& connection) {
    char buffer[4096];
    while (connection.request.size() <= limits_.request_bytes) {
      const ssize_t n = ::recv(connection.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
      if (n <= 0) {  // gone, or no more is said
        connection.done = true;
        return false;
      }
      connection.request.append(buffer, static_cast<size_t>(n));
      if (head_is_complete(connection.request)) break;
    }
    connection.answer = connection.request.size() > limits_.request_bytes
                            ? refusal("431 Request Header Fields Too Large", "", "the request is too long\n")
                            : answer(connection.request);
    return true;
  }

  std::string answer(std::string_view request) {
    std::string_view line = request.substr(0, request.find('\n'));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.size() != 3 || !words[2].starts_with("HTTP/1."))
      return refusal("400 Bad Request", "", "expected: GET /metrics HTTP/1.1\n");
    if (words[0] != "GET" && words[0] != "HEAD")
      return refusal("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "expected GET or HEAD\n");
    if (words[1].substr(0, words[1].find('?')) != "/metrics")
      return refusal("404 Not Found", "", "the metrics are at /metrics\n");
    if (!body_) body_ = text_();
    return answer_of("200 OK", "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n", *body_,
                     words[0] == "GET");
  }

  Descriptor listener_;
  int stop_;
  std::function<std::string()> text_;
  MetricsServerLimits limits_;
  std::deque<Connection> connections_;  // by deadline, that of the oldest first
  std::optional<std::string> body_;     // one for all that ask in a round
};

}  // namespace

Descriptor listen_for_prometheus(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    throw_config("metrics.prometheus_host = \"{}\": {}; expected an address of rank 0's host",
                 printable(host), ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    Descriptor socket(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    if (socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        ::bind(socket.get(), info->ai_addr, info->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    error = errno;
  }
  throw_config(
      "rank 0 cannot listen on metrics.prometheus_port {} of {}: {}; choose another one, or 0 for none", port,
      printable(host), error == EADDRINUSE ? "the port is in use" : errno_text(error));
}

MetricsServer::MetricsServer(Descriptor listener, std::function<std::string()> text,
                             MetricsServerLimits limits)
    : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw std::system_error(errno, std::generic_category(), "eventfd");
  auto server = std::make_shared<Server>(std::move(listener), stop_.get(), std::move(text), limits);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the training thread's
  const auto restored = [&] { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  try {
    thread_ = std::thread([server] {
      ::pthread_setname_np(::pthread_self(), "prometheus");
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
      try {
        server->run();
      } catch (const std::exception& error) {
        log_warning("Prometheus gets no more answers: {}", error.what());
      }
    });
  } catch (...) {
    restored();
    throw;
  }
  restored();
}

MetricsServer::~MetricsServer() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

}  // namespace hyperion::metrics
