#include "tests/simulated_gpu/trace.h"

#include <cstdio>
#include <cstdlib>

namespace simulated_gpu {
namespace {

std::FILE* open() {
  const char* path = std::getenv("HYPERION_SIMULATED_TRACE");
  std::FILE* const opened = path == nullptr ? nullptr : std::fopen(path, "ae");
  if (opened != nullptr) std::setvbuf(opened, nullptr, _IOLBF, 1 << 12);  // ranks share it: whole lines alone
  return opened;
}

std::FILE* file() {
  static std::FILE* const opened = open();
  return opened;
}

}  // namespace

bool tracing() {
  return file() != nullptr;
}

void trace(const char* what, const char* detail) {
  if (tracing()) std::fprintf(file(), "%s\t%s\n", what, detail);
}

}  // namespace simulated_gpu
