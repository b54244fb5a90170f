// What a pipeline schedule costs to make, and what a step loses by how its transfers are queued.
//   benchmark_pipeline_schedule [SEEDS]
// First the milliseconds to make, check and lower the largest schedules (16 ranks, 8 stages each, 256
// microbatches). Then, where actions take up to 20 % more or less than the costs that ordered the transfers,
// how much longer a step is with few in-order streams for transfers than with unlimited ones: the mean and
// the worst of SEEDS (1,000) random costs, in percent.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>

#include <fmt/format.h>

#include "parallel/pipeline/lowering.h"

using namespace hyperion;
using namespace hyperion::parallel;

namespace {

using enum PipelineKind;

void print_times() {
  for (const PipelineKind kind :
       {k1F1B, kLoopedBfs, kInterleaved1F1B, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    const int stages = std::min(8, stages_per_rank(kind).max);
    const auto begin = std::chrono::steady_clock::now();
    const PipelineSchedule schedule = make_schedule(kind, {16, stages, 256});
    const auto made = std::chrono::steady_clock::now();
    const bool is_right = !find_problem(schedule);
    const auto checked = std::chrono::steady_clock::now();
    const PipelineSchedule lowered = lower(schedule, uniform_costs(1, 2, 1, 1, 0.05));
    const auto end = std::chrono::steady_clock::now();
    size_t actions = 0;
    for (const auto& list : lowered.ranks) actions += list.size();
    const auto milliseconds = [](auto duration) {
      return std::chrono::duration<double, std::milli>(duration).count();
    };
    fmt::print(
        "{:22} P 16 v {} M 256: made {:5.1f} ms, checked {:5.1f} ms{}, lowered {:5.1f} ms, {} actions\n",
        text_of(kind), stages, milliseconds(made - begin), milliseconds(checked - made),
        is_right ? "" : " (broken)", milliseconds(end - checked), actions);
  }
}

// Costs that are off: `by_action` each time an action runs, else for each rank and stage the same all step.
PipelineCosts wrong_costs(const PipelineCosts& costs, double largest, bool by_action, unsigned seed) {
  return [=](const PipelineAction& action) {
    std::seed_seq words{seed, static_cast<unsigned>(action.op), static_cast<unsigned>(action.stage),
                        by_action ? static_cast<unsigned>(action.microbatch) : 0U};
    unsigned bits = 0;
    words.generate(&bits, &bits + 1);
    return costs(action) * (1 + largest * (bits / 2147483647.5 - 1));
  };
}

void print_losses(const char* name, double transfer, bool by_action, int seeds) {
  fmt::print("\ncosts off by up to 20 % {}, a transfer takes {:.2f} of a forward\n", name, transfer);
  fmt::print("{:22} {:>2} {:>2} {:>3} {:>23} {:>23} {:>23}\n", "schedule", "P", "v", "M", "one stream",
             "F and B", "up and down");
  const PipelineCosts costs = uniform_costs(1, 2, 1, 1, transfer);
  for (const PipelineKind kind :
       {kGPipe, k1F1B, kLoopedBfs, kInterleaved1F1B, kInterleavedZeroBubble, kZbvZeroBubble, kDualPipeV}) {
    for (const auto& [ranks, microbatches] : {std::pair(4, 8), std::pair(4, 16), std::pair(8, 32)}) {
      const int stages = stages_per_rank(kind).min;
      const PipelineSchedule lowered = lower(make_schedule(kind, {ranks, stages, microbatches}), costs);
      fmt::print("{:22} {:2} {:2} {:3}", text_of(kind), ranks, stages, microbatches);
      for (const TransferStreams streams :
           {TransferStreams::kOne, TransferStreams::kPerOp, TransferStreams::kPerDirection}) {
        const auto loss = [&](const PipelineCosts& real) {
          return 100 * (simulate(lowered, real, streams).seconds / simulate(lowered, real).seconds - 1);
        };
        double sum = 0, worst = 0;
        for (int seed = 0; seed < seeds; ++seed) {
          const double one = loss(wrong_costs(costs, 0.2, by_action, seed));
          sum += one;
          worst = std::max(worst, one);
        }
        fmt::print("   {:5.2f} {:6.2f} ({:5.2f})", loss(costs), sum / seeds, worst);
      }
      fmt::print("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000;
  print_times();
  for (const double transfer : {0.0, 0.1}) {
    print_losses("by stage", transfer, false, seeds);
    print_losses("by action", transfer, true, seeds);
  }
}
