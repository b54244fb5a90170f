// main() only calls run_program(). The file also sets the program's malloc, and reports memory that runs out
// while libraries are loaded.
#include <exception>
#include <new>
#include <string_view>
#include <typeinfo>

#include <cxxabi.h>
#include <unistd.h>

#include "app/program.h"
#include "base/error.h"
#include "trainer/runtime/signals.h"

// The program's malloc is jemalloc, which reads this: a step's tensors take a tenth less processor time than
// with glibc's. By default blocks of 8 MiB and more are returned to the system at once, and other free memory
// soon after; a step needs the same memory again (returning it cost 3 to 8 % of its processor time). By
// default a request does not take a part of free memory that is more than 64 times as large, either: where
// small and large tensors take turns, steps then ask the system for new memory for hundreds of steps (a model
// of 100 million parameters for 100 MiB a step, and a sixth of its time went into page faults).
extern "C" const char* malloc_conf;
const char* malloc_conf = "oversize_threshold:0,dirty_decay_ms:-1,lg_extent_max_active_fit:63";

namespace hyperion::app {
namespace {

std::terminate_handler default_terminate = nullptr;

// Handles an exception before main, while libraries initialise: libtorch then registers thousands of
// operators, and a failed allocation would abort the process without a message. Nothing may be allocated
// here.
void on_terminate_before_main() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr || *type != typeid(std::bad_alloc)) default_terminate();
  constexpr std::string_view kSentence =
      "hyperion: memory ran out while the program was being loaded; give it more memory, or raise the limit "
      "(ulimit -v)\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kSentence.data(), kSentence.size());
  ::_exit(static_cast<int>(ExitCode::kResources));
}
void handle_terminate_before_main(int, char**, char**) {
  default_terminate = std::set_terminate(on_terminate_before_main);
  trainer::block_warning(true);  // until the subcommand lets it come
}
// The dynamic loader calls this before any library's initialisers.
[[gnu::section(".preinit_array"), gnu::used]] void (*const kPreinit)(int, char**,
                                                                     char**) = handle_terminate_before_main;

}  // namespace
}  // namespace hyperion::app

int main(int argc, char** argv) {
  return hyperion::app::run_program({argv, argv + argc});
}
