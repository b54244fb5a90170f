// Any bytes as the arguments of the program, a zero byte after each, and their overrides as those of a job:
// they are understood, or refused as a mistake in the call. Nothing is opened or run.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "base/error.h"
#include "trainer/config/load.h"

using namespace hyperion;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (size_t begin = 0; begin < size; begin += arguments.back().size() + 1)
    arguments.emplace_back(text.c_str() + begin);
  try {
    const app::CommandLine line = app::parse_command_line(std::move(arguments), 100);
    config::parse_config("", "job.toml", line.overrides);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUsage) std::abort();
  }
  return 0;
}
