// Draws plans as one HTML page that loads nothing: memory, time of a step, and speed against the number of
// GPUs. No I/O.
#pragma once

#include <string>
#include <vector>

#include "app/plan/plan_text.h"

namespace hyperion::app {

// The fastest plan of the job on a number of GPUs.
struct GpusPlan {
  int64_t gpus = 0;
  MeshPlan plan;
};

// `table` is plan_table(). `scaling` is ordered by GPUs; with fewer than two there is no plot of the speed.
std::string plan_page(const SearchResult& result, const PlanFacts& facts, const Hardware& hardware,
                      const std::string& table, const std::vector<GpusPlan>& scaling);

}  // namespace hyperion::app
