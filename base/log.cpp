#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

static_assert(FMT_VERSION < 100000, "spdlog needs Debian's fmt 9, but another fmt was found first");

namespace hyperion {
namespace {

// Python's logging level names: WARNING and CRITICAL where spdlog says warning and critical.
class PythonLevel : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    static constexpr std::string_view kNames[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"};
    const std::string_view name = kNames[message.level];
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PythonLevel>(); }
};

}  // namespace

void init_logging(bool quiet) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PythonLevel>('*').set_pattern("[hyperion] %Y-%m-%d %H:%M:%S,%e - root - %* - %v");
  auto logger = std::make_shared<spdlog::logger>("root", std::make_shared<spdlog::sinks::stdout_sink_mt>());
  logger->set_formatter(std::move(formatter));
  logger->set_level(quiet ? spdlog::level::err : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace hyperion
