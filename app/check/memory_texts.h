// Describes the memory of a rank for `hyperion check`.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/plan/job_size.h"
#include "trainer/plan/memory_needs.h"

namespace hyperion::app {

// Returns "3.00 GiB: weights 2.00 GiB, gradients 1.00 GiB", with `words` after the sum.
std::string describe_needs(const trainer::MemoryNeeds& needs, bool on_gpu, const char* words = "");

// Returns what is not counted: NCCL's communicators. `needs` and `memory` are bytes of the GPU.
std::string describe_communicators(const trainer::Communicators& communicators, int64_t pipeline_ctas,
                                   double needs, double memory);

// Routers do not deal tokens out evenly: the rows of a rank are reserved for at 1.25 times the mean.
std::string describe_expert_rows(double rows, double needs, double memory);

}  // namespace hyperion::app
