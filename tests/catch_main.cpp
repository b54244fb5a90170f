// The main() of all unit-test programs.
#define CATCH_CONFIG_RUNNER
#include <cstdio>
#include <cstdlib>

#include <catch2/catch.hpp>

int main(int count, char** arguments) {
  const int code = Catch::Session().run(count, arguments);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;  // leaks are looked for at the end
#else
  std::fflush(nullptr);
  std::_Exit(code);  // a third of a short test's time would be libtorch's destructors
#endif
}
