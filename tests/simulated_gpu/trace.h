// What the simulated GPU was asked to do, a line each, into the file that HYPERION_SIMULATED_TRACE names.
#pragma once

namespace simulated_gpu {

bool tracing();
void trace(const char* what, const char* detail);

}  // namespace simulated_gpu
