// Logging: spdlog's default logger, set up once so that every line starts with the v0.2.2 prefix
// "[hyperion] 2026-02-20 12:00:00,000 - root - INFO - ". Use log_info("x = {}", x) and its siblings.
#pragma once

#include <string>
#include <string_view>

#include <spdlog/spdlog.h>

namespace hyperion {

// Where all lines go, warnings and errors too, so that one stream keeps the order.
enum class LogStream {
  kStdout,  // of a training job, as in v0.2.2
  kStderr,  // of commands that print results on stdout
};

// quiet: only errors pass, for the ranks that LOG_RANK leaves out. HYPERION_LOG_LEVEL (debug, info, warning
// or error) chooses what the others show; throws Error(kUsage) for anything else. On a terminal
// (base/terminal.h) warnings are yellow and errors red.
void init_logging(bool quiet, LogStream stream = LogStream::kStdout);

// Whether rank's lines are shown, by LOG_RANK of v0.2.2's launcher: a comma list of ranks ("0,3"); empty
// means "0". Throws Error(kUsage) when the list is malformed.
bool rank_prints(int rank, std::string_view log_rank);
// The same for the environment variable LOG_RANK.
bool rank_prints(int rank);

// One message. Control bytes that came with a file name, a document or the environment are written out.
void write_log(spdlog::level::level_enum level, std::string_view message);
// A line of our own making, colour codes included.
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
