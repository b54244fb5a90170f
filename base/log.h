// Logging: spdlog's default logger, set up once so that every line starts with the v0.2.2 prefix
// "[hyperion] 2026-02-20 12:00:00,000 - root - INFO - ". Use log_info("x = {}", x) and its siblings.
#pragma once

#include <string>
#include <string_view>

#include <spdlog/spdlog.h>

namespace hyperion {

// The stream of all lines, including warnings and errors, so that their order is kept.
enum class LogStream {
  kStdout,  // for training jobs, as in v0.2.2
  kStderr,  // for commands that print results on stdout
};

// `quiet` lets only errors pass, for ranks that LOG_RANK leaves out. HYPERION_LOG_LEVEL (debug, info,
// warning or error) sets the level of the others; throws Error(kUsage) for anything else. On a terminal
// (base/terminal.h) warnings are yellow and errors red.
void init_logging(bool quiet, LogStream stream = LogStream::kStdout);

// Returns whether the rank's lines are shown, by LOG_RANK of v0.2.2's launcher: a comma list of ranks
// ("0,3"); empty means "0". Throws Error(kUsage) if the list is malformed.
bool rank_prints(int rank, std::string_view log_rank);
// Reads the environment variable LOG_RANK.
bool rank_prints(int rank);

// Logs one message. Control bytes from file names, documents or the environment are escaped.
void write_log(spdlog::level::level_enum level, std::string_view message);
// Logs a line of our own, with its colour codes.
void log_coloured(std::string_view line);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (spdlog::should_log(spdlog::level::info))
    write_log(spdlog::level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_log(spdlog::level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  write_log(spdlog::level::err, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hyperion
