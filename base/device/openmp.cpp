#include "base/device/openmp.h"

namespace hyperion {

void call_on_openmp_threads(void (*call)(void* argument), void* argument) {
#pragma omp parallel
  call(argument);
}

}  // namespace hyperion
