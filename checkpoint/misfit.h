// A checkpoint that is sound but does not fit the job that wants it: other names, shapes, types or parts.
// Told apart from damage by its type, because the two mean different things: from damage a job goes back to
// the checkpoint before, while a misfit has to be settled by whoever started it.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace hyperion {

class Misfit : public Error {
 public:
  explicit Misfit(const std::string& message) : Error(ExitCode::kBadData, message) {}
};

template <typename... Args>
[[noreturn]] void throw_misfit(fmt::format_string<Args...> format, Args&&... args) {
  throw Misfit(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hyperion
