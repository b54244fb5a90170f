#include "base/shell.h"

namespace hyperion {
namespace {

bool shell_safe(const std::string& argument) {
  constexpr const char* kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  return !argument.empty() && argument.find_first_not_of(kSafe) == std::string::npos;
}

std::string shell_quoted(const std::string& argument) {
  std::string out = "'";
  for (const char c : argument) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string shell_command(const std::vector<std::string>& arguments) {
  std::string out;
  for (const std::string& argument : arguments) {
    if (!out.empty()) out += ' ';
    out += shell_safe(argument) ? argument : shell_quoted(argument);
  }
  return out;
}

}  // namespace hyperion
