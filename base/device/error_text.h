// Texts of libtorch's exceptions.
#pragma once

#include <exception>
#include <string>

namespace hyperion {

// The message of an exception without c10's stack frames.
std::string brief(const std::exception& error);

}  // namespace hyperion
