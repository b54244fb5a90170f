// Any bytes as a pipeline schedule of two ranks; what is accepted can be lowered and run.
#include <string_view>

#include "parallel/pipeline/csv.h"
#include "parallel/pipeline/lowering.h"
#include "tests/fuzz/fuzz.h"

using namespace hyperion::parallel;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const PipelineSchedule schedule = parse_csv_schedule(text, "fuzz", 2, 4);
    const PipelineSchedule lowered = lower(schedule, uniform_costs(1, 2, 1, 1, 0.1));
    if (find_problem(lowered)) std::abort();
  } catch (const hyperion::Error& error) {
    if (error.code() != hyperion::ExitCode::kUsage) std::abort();
  }
  return 0;
}
