// Logging: spdlog's default logger, set up once so that every line starts with the v0.2.2 prefix
// "[hyperion] 2026-02-20 12:00:00,000 - root - INFO - ". Use log_info("x = {}", x) and its siblings everywhere.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace hyperion {

// Lines go to stdout (warnings and errors too, as in v0.2.2, so one stream keeps the order).
// quiet: only errors pass, for the ranks that LOG_RANK leaves out.
void init_logging(bool quiet);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace hyperion
