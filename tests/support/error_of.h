// The error that an action ends with, for tests of refusals.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace hyperion {

// What `action` says when it throws Error(code), as it must; otherwise what it did instead.
inline std::string error_of(ExitCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code() == code ? error.what() : "another exit code: " + std::string(error.what());
  } catch (const std::exception& error) {
    return "not an Error: " + std::string(error.what());
  }
  return "nothing was thrown";
}

}  // namespace hyperion
