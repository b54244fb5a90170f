#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "trainer/metrics/metrics_server.h"
#include "trainer/metrics/prometheus_figures.h"

namespace hyperion::metrics {
namespace {

std::set<std::string> names_in(const std::string& text) {
  static const std::regex name("hyperion_[a-z0-9_]+");
  std::set<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found)
    names.insert(found->str());
  return names;
}

std::set<std::string> known_names() {
  const std::vector<std::string> names = prometheus_names();
  return {names.begin(), names.end()};
}

PrometheusFigures resumed() {
  return PrometheusFigures({.run_id = "20260220-120000",
                            .ranks = 8,
                            .start_step = 100,
                            .total_steps = 200,
                            .tokens_seen = 5000,
                            .starts = 2,
                            .start_time = 1771588800});
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

int port_of(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  REQUIRE(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin_port);
}

Descriptor connect(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return socket;
}

// Everything up to the end of the connection.
std::string rest_of(const Descriptor& socket) {
  std::string out;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;) out.append(buffer, n);
  return out;
}

std::string ask(int port, const std::string& request) {
  const Descriptor socket = connect(port);
  REQUIRE(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  return rest_of(socket);
}

}  // namespace

TEST_CASE("Prometheus counts what this start has done, and knows the run's totals") {
  PrometheusFigures figures = resumed();
  CHECK(has_line(figures.text(), "hyperion_state{state=\"starting\"} 1"));
  CHECK(figures.text().find("hyperion_last_step_timestamp_seconds") == std::string::npos);
  figures.step_done(101, 5100);
  const std::string text = figures.text();
  for (const char* line :
       {"# TYPE hyperion_steps_total counter", "hyperion_step 101", "hyperion_steps_total 1",
        "hyperion_tokens_seen 5100", "hyperion_tokens_total 100", "hyperion_planned_steps 200",
        "hyperion_starts 2", "hyperion_run_info{run_id=\"20260220-120000\"} 1",
        "hyperion_state{state=\"training\"} 1", "hyperion_state{state=\"starting\"} 0",
        "hyperion_checkpoints_total{result=\"failed\"} 0"}) {
    INFO(line);
    CHECK(has_line(text, line));
  }
}

TEST_CASE("Prometheus reads the figures of the last logged step and validation ") {
  PrometheusFigures figures = resumed();
  figures.logged(110, {{"loss_metrics/global_avg_loss", 2.5}, {"grad_norm", 1}, {"sources/web/tokens", 7}});
  figures.validated(110, {{"validation_metrics/loss", std::nan("")}, {"validation_metrics/loss/web", 2}});
  figures.logged(120, {{"loss_metrics/global_avg_loss", 2.25}, {"sources/web/tokens", 8}});
  std::string text = figures.text();
  for (const char* line :
       {"hyperion_loss 2.25", "hyperion_logged_step 120", "hyperion_validation_step 110",
        "hyperion_validation_loss NaN", "hyperion_validation_source_loss{source=\"web\"} 2",
        "hyperion_source_tokens{source=\"web\"} 8"})
    CHECK(has_line(text, line));
  CHECK(text.find("hyperion_grad_norm") == std::string::npos);  // that step did not log it
}

TEST_CASE("Prometheus reads base units, one HELP line for several labels, and names that are escaped") {
  PrometheusFigures figures = resumed();
  figures.logged(110, {{"grad_norm", std::numeric_limits<double>::infinity()},
                       {"mfu(%)", 50},
                       {"memory/max_active(GiB)", 1.5},
                       {"gpu/throttled_ranks/thermal", 1},
                       {"gpu/throttled_ranks/power_brake", 0},
                       {"sources/co\"de/tokens", 3},
                       {"no/such/figure", 1}});
  const std::string text = figures.text();
  for (const char* line :
       {"hyperion_grad_norm +Inf", "hyperion_mfu_ratio 0.5", "hyperion_memory_active_bytes 1610612736",
        "hyperion_gpu_throttled_ranks{reason=\"thermal\"} 1",
        "hyperion_gpu_throttled_ranks{reason=\"power_brake\"} 0",
        "hyperion_source_tokens{source=\"co\\\"de\"} 3"})
    CHECK(has_line(text, line));
  const std::string type = "# TYPE hyperion_gpu_throttled_ranks";
  CHECK(text.find(type) == text.rfind(type));
  CHECK(std::ranges::includes(known_names(), names_in(text)));
}

TEST_CASE("At most 64 sources have series, and the number of the rest is known") {
  PrometheusFigures figures = resumed();
  MetricList list;
  for (int i = 0; i < 100; ++i) {
    list.emplace_back(fmt::format("sources/s{}/tokens", i), i);
    list.emplace_back(fmt::format("sources/s{}/epoch", i), 0);
  }
  figures.logged(1, list);
  const std::string text = figures.text();
  CHECK(text.find("source_tokens{source=\"s63\"}") != std::string::npos);
  CHECK(text.find("{source=\"s64\"}") == std::string::npos);
  CHECK(has_line(text, "hyperion_sources_left_out 36"));
}

TEST_CASE("Prometheus sees checkpoints and the end of a job") {
  PrometheusFigures figures = resumed();
  figures.event(0, "checkpoint_durable", {{"kind", std::string("pre-checkpoint")}, {"write_seconds", 1.0}});
  CHECK(has_line(figures.text(), "hyperion_checkpoints_total{result=\"durable\"} 0"));
  figures.event(100, "checkpoint_durable",
                {{"kind", std::string("full")},
                 {"bytes", int64_t{4096}},
                 {"write_seconds", 1.5},
                 {"commit_seconds", 0.25}});
  figures.event(110, "checkpoint_failed", {{"message", std::string("disk full")}});
  figures.event(110, "checkpoint_staged", {{"stall_seconds", 0.125}});
  const std::string text = figures.text();
  for (const char* line :
       {"hyperion_checkpoints_total{result=\"durable\"} 1", "hyperion_checkpoints_total{result=\"failed\"} 1",
        "hyperion_checkpoint_durable_step 100", "hyperion_checkpoint_write_duration_seconds 1.75",
        "hyperion_checkpoint_size_bytes 4096", "hyperion_checkpoint_stall_seconds 0.125"})
    CHECK(has_line(text, line));
  CHECK(text.find("\nhyperion_checkpoint_failure_timestamp_seconds ") != std::string::npos);
  CHECK(text.find("hyperion_exit_code") == std::string::npos);
  for (const auto& [code, state] :
       std::vector<std::pair<ExitCode, std::string>>{{ExitCode::kOk, "completed"},
                                                     {ExitCode::kStoppedSaved, "stopped"},
                                                     {ExitCode::kNonFinite, "failed"}}) {
    figures.event(110, "end", {{"exit_code", static_cast<int64_t>(code)}});
    CHECK(has_line(figures.text(), fmt::format("hyperion_exit_code {}", static_cast<int>(code))));
    CHECK(has_line(figures.text(), fmt::format("hyperion_state{{state=\"{}\"}} 1", state)));
  }
}

TEST_CASE("The dashboard and the documentation name the metrics that there are") {
  CHECK(names_in(read_file(HYPERION_SOURCE_DIR "/docs/prometheus.md")) == known_names());
  CHECK(std::ranges::includes(known_names(), names_in(read_file(HYPERION_SOURCE_DIR "/docs/grafana.json"))));
}

TEST_CASE("A reader sees each published value whole, and in the order of publishing") {
  NewestValue<std::vector<int>> newest;
  std::thread writer([&] {
    for (int i = 1; i <= 20000; ++i) {
      newest.back().assign(16, i);
      newest.publish();
    }
  });
  int last = 0;
  bool whole = true;
  while (last < 20000) {
    const std::vector<int>& seen = newest.newest();
    if (seen.empty()) continue;
    whole = whole && seen.front() >= last && std::ranges::count(seen, seen.front()) == 16;
    last = seen.front();
  }
  writer.join();
  CHECK(whole);
}

TEST_CASE("The metrics server answers what it knows and refuses the rest") {
  Descriptor listener = listen_for_prometheus("127.0.0.1", 0);
  const int port = port_of(listener);
  MetricsServer server(std::move(listener), [] { return std::string("hyperion_step 1\n"); });
  const std::string answer = ask(port, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(answer ==
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: "
        "16\r\nConnection: close\r\n\r\nhyperion_step 1\n");
  CHECK(ask(port, "HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("close\r\n\r\n"));
  CHECK(ask(port, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  CHECK(ask(port, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  CHECK(ask(port, "\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(ask(port, "GET /metrics HTTP/2\r\n\r\n").starts_with("HTTP/1.1 400 "));
  // A refusal may be lost, because the client's bytes were not all read.
  const std::string long_one = ask(port, "GET /metrics HTTP/1.1\r\nX: " + std::string(1 << 20, 'a'));
  CHECK((long_one.empty() || long_one.starts_with("HTTP/1.1 431 ")));
  CHECK(ask(port, "GET /metrics HTTP/1.1\r\n\r\n") != "");
}

TEST_CASE("The metrics server closes clients that say nothing, first where there are too many") {
  Descriptor listener = listen_for_prometheus("127.0.0.1", 0);
  const int port = port_of(listener);
  MetricsServer server(std::move(listener), [] { return std::string("a 1\n"); },
                       {.connections = 2, .connection_time = std::chrono::milliseconds(200)});
  std::vector<Descriptor> slow;
  for (int i = 0; i < 20; ++i) slow.push_back(connect(port));
  CHECK(ask(port, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\na 1\n"));
  for (const Descriptor& socket : slow) CHECK(rest_of(socket).empty());  // returns once each is closed
}

TEST_CASE("A port that is in use and a host that is none of ours are refused by their keys") {
  const Descriptor taken = listen_for_prometheus("127.0.0.1", 0);
  const auto error_of = [](const std::string& host, int port) {
    try {
      listen_for_prometheus(host, port);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(error_of("127.0.0.1", port_of(taken)) ==
        fmt::format(
            "rank 0 cannot listen on metrics.prometheus_port {} of 127.0.0.1: the port is in use; choose "
            "another one, or 0 for none",
            port_of(taken)));
  CHECK(error_of("", 9100).starts_with("metrics.prometheus_host = \"\""));
  CHECK(error_of("203.0.113.1", 9100).find("EADDRNOTAVAIL") != std::string::npos);
}

}  // namespace hyperion::metrics
