// Threads of a CPU sleep soon where they wait for each other. libgomp's spin for milliseconds by default, so
// on cores that other programs use too, a step took up to ten times as long and six times as much processor
// time. libgomp reads GOMP_SPINCOUNT when it is loaded, which is before main() and before the C library knows
// the environment: the program therefore starts itself once more with the variable, before any library is
// initialized.
#include <bit>
#include <cstring>

#include <sys/auxv.h>
#include <unistd.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these are not ready before main()
namespace {

// Rounds of a pause each, some 0.2 ms: on an idle machine steps are as fast as with libgomp's 300,000.
char spin_count[] = "GOMP_SPINCOUNT=10000";  // a variable of the environment is no constant

bool begins_with(const char* text, const char* prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

void start_again_with_spin_count(int /*argc*/, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    const char* variable = environment[count];
    if (begins_with(variable, "GOMP_SPINCOUNT=") || begins_with(variable, "OMP_WAIT_POLICY=") ||
        std::strcmp(variable, "OMP_NUM_THREADS=1") == 0)
      return;  // the user has chosen, or nobody waits
  }
  // AT_EXECFN names the dynamic loader where the program was its argument; and without a vDSO it runs in
  // valgrind or an emulator, which a new start would leave.
  if (getauxval(AT_BASE) == 0 || getauxval(AT_SYSINFO_EHDR) == 0) return;
  auto** with_count = static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*)));
  std::memcpy(with_count, environment, count * sizeof(char*));
  with_count[count] = spin_count;
  with_count[count + 1] = nullptr;
  execve(std::bit_cast<const char*>(getauxval(AT_EXECFN)), argv, with_count);
  // It cannot be started again, so it goes on with libgomp's default.
}

using AtStart = void (*)(int, char**, char**);
__attribute__((section(".preinit_array"), used)) const AtStart kAtStart = start_again_with_spin_count;

}  // namespace
#endif
