// openmp.cpp is the only file that is compiled with OpenMP.
#pragma once

namespace hyperion {

// Calls call(argument) on each thread of an OpenMP team, including this one, and returns when all are done.
// It is the team of libtorch's operations: both use the same OpenMP library.
void call_on_openmp_threads(void (*call)(void* argument), void* argument);

}  // namespace hyperion
