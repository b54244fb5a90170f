// Implements std::condition_variable::wait() for older C++ libraries. In GCC 12 it got a new symbol
// version, GLIBCXX_3.4.30, because it is no longer noexcept: a thread can be cancelled in it. It is the
// only symbol above GCC 11's that Hyperion would need, so the linker redirects the calls here (--wrap,
// base/CMakeLists.txt).
#include <condition_variable>
#include <exception>
#include <mutex>

#include <pthread.h>

// The symbol is named as the linker's --wrap asks.
void wait_on(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) __asm__(
    "__wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");

void wait_on(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  if (pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle()) != 0) std::terminate();
}
