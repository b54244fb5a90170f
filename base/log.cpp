#include "base/log.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "base/error.h"

static_assert(FMT_VERSION < 100000, "spdlog needs Debian's fmt 9, but another fmt was found first");

namespace hyperion {
namespace {

// Python's logging level names: WARNING and CRITICAL where spdlog says warning and critical.
class PythonLevel : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr std::string_view kNames[] = {"TRACE", "DEBUG",    "INFO", "WARNING",
                                                  "ERROR", "CRITICAL", "OFF"};
    const std::string_view name = kNames[message.level];
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PythonLevel>(); }
};

spdlog::level::level_enum chosen_level() {
  const char* name = std::getenv("HYPERION_LOG_LEVEL");
  if (name == nullptr || *name == '\0') return spdlog::level::info;
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

void init_logging(bool quiet) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PythonLevel>('*').set_pattern("[hyperion] %Y-%m-%d %H:%M:%S,%e - root - %* - %v");
  auto logger = std::make_shared<spdlog::logger>("root", std::make_shared<spdlog::sinks::stdout_sink_mt>());
  logger->set_formatter(std::move(formatter));
  logger->set_level(quiet ? spdlog::level::err : chosen_level());
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool rank_prints(int rank, std::string_view log_rank) {
  if (log_rank.empty()) return rank == 0;
  bool listed = false;
  for (size_t start = 0; start <= log_rank.size();) {
    const size_t end = std::min(log_rank.find(',', start), log_rank.size());
    int value = -1;
    const auto [stop, error] = std::from_chars(log_rank.data() + start, log_rank.data() + end, value);
    if (error != std::errc{} || stop != log_rank.data() + end || value < 0)
      throw_config("LOG_RANK is '{}', expected a comma list of ranks such as 0,3", log_rank);
    listed = listed || value == rank;
    start = end + 1;
  }
  return listed;
}

bool rank_prints(int rank) {
  const char* log_rank = std::getenv("LOG_RANK");
  return rank_prints(rank, log_rank == nullptr ? "" : log_rank);
}

}  // namespace hyperion
