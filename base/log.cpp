#include "base/log.h"

#include <memory>
#include <optional>
#include <utility>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <unistd.h>

#include "base/error.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/terminal.h"
#include "base/text.h"

static_assert(FMT_VERSION < 100000, "spdlog needs Debian's fmt 9, but another fmt was found first");

namespace hyperion {
namespace {

void append(spdlog::memory_buf_t& out, std::string_view text) {
  out.append(text.data(), text.data() + text.size());
}

// Formats level and text with the level names of Python's logging: WARNING and CRITICAL, where spdlog says
// warning and critical.
class LevelAndText : public spdlog::custom_flag_formatter {
 public:
  explicit LevelAndText(int fd) : fd_(fd) {}
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr std::string_view kNames[] = {"TRACE", "DEBUG",    "INFO", "WARNING",
                                                  "ERROR", "CRITICAL", "OFF"};
    const bool colored = message.level >= spdlog::level::warn && terminal_escapes(fd_);
    if (colored) append(out, message.level == spdlog::level::warn ? "\033[33m" : "\033[31m");
    append(out, kNames[message.level]);
    append(out, " - ");
    append(out, {message.payload.data(), message.payload.size()});
    if (colored) append(out, "\033[39m");  // v0.2.2 ends a colour like this
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<LevelAndText>(fd_);
  }

 private:
  int fd_;
};

spdlog::level::level_enum level_from_environment() {
  const std::string name = environment_variable("HYPERION_LOG_LEVEL").value_or("");
  if (name.empty()) return spdlog::level::info;
  static constexpr std::pair<std::string_view, spdlog::level::level_enum> kLevels[] = {
      {"debug", spdlog::level::debug},
      {"info", spdlog::level::info},
      {"warning", spdlog::level::warn},
      {"error", spdlog::level::err}};
  for (const auto& [level_name, level] : kLevels)
    if (level_name == name) return level;
  throw_config("HYPERION_LOG_LEVEL is '{}', expected debug, info, warning or error", name);
}

}  // namespace

void init_logging(bool quiet, LogStream stream) {
  const bool to_stdout = stream == LogStream::kStdout;
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LevelAndText>('*', to_stdout ? STDOUT_FILENO : STDERR_FILENO)
      .set_pattern("[hyperion] %Y-%m-%d %H:%M:%S,%e - root - %*");
  spdlog::sink_ptr sink;
  if (to_stdout)
    sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  else
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("root", std::move(sink));
  logger->set_formatter(std::move(formatter));
  logger->set_level(quiet ? spdlog::level::err : level_from_environment());
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void write_log(spdlog::level::level_enum level, std::string_view message) {
  spdlog::default_logger_raw()->log(level, escape_control_bytes(message, "\n\t"));
}

void log_coloured(std::string_view line) {
  spdlog::default_logger_raw()->log(spdlog::level::info, line);
}

bool rank_prints(int rank, std::string_view log_rank) {
  if (log_rank.empty()) return rank == 0;
  bool listed = false;
  for (const std::string_view entry : split(log_rank, ',')) {
    const std::optional<int> value = parse_number<int>(entry);
    if (!value || *value < 0)
      throw_config("LOG_RANK is '{}', expected a comma list of ranks such as 0,3", log_rank);
    listed |= *value == rank;
  }
  return listed;
}

bool rank_prints(int rank) {
  return rank_prints(rank, environment_variable("LOG_RANK").value_or(""));
}

}  // namespace hyperion
