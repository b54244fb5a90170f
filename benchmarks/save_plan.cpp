// How long it takes to plan a save of many tensors on many ranks, and to write its index.
//   benchmark_save_plan [TENSORS] [RANKS] [REPLICAS] [STAGES] [ROWS of a tensor, 8192] [EXPERT RANKS, 1]
// With expert ranks three of seven matrices are stacks of 256 experts, which these ranks divide.
// Prints one line of JSON: seconds (medians of 7 but for the index, which is made once) and MiB.
#include "checkpoint/save_plan.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/resource.h>

#include "checkpoint/save_index.h"

using namespace hyperion;
using namespace hyperion::checkpoint;

namespace {

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_of_7(const auto& work) {
  std::vector<double> seconds;
  for (int i = 0; i < 7; ++i) seconds.push_back(seconds_of(work));
  std::ranges::nth_element(seconds, seconds.begin() + 3);
  return seconds[3];
}

long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

constexpr int64_t kExperts = 256;

// Of a stack, where `expert_ranks` divide its experts and `shards` / `expert_ranks` shard them: complete
// experts, or stretches of rows of one.
std::vector<Cut> cuts_of_stack(int64_t shards, int64_t expert_ranks) {
  const int64_t sharding = shards / expert_ranks, stretches = std::max<int64_t>(1, shards / kExperts);
  return {{.parts = expert_ranks}, {.parts = sharding / stretches}, {.dim = 1, .parts = stretches}};
}

// Matrices, vectors and single numbers, named as in a deep model with its optimizer.
// Equally many tensors in each of `stages` pipeline stages, whose ranks are those of equal rank / (ranks /
// stages).
std::vector<TensorState> make_tensors(int64_t count, int ranks, int replicas, int stages, int64_t rows,
                                      int64_t expert_ranks) {
  const int of_stage = ranks / stages;
  std::vector<TensorState> tensors;
  for (int64_t i = 0; i < count; ++i) {
    TensorState tensor;
    const char* const parts[] = {"", ".exp_avg", ".exp_avg_sq", ".step"};
    const std::string name =
        fmt::format("layers.{}.feed_forward.w{}.weight{}", i / 28, i / 4 % 7, parts[i % 4]);
    tensor.key = i % 4 == 0 ? name : "optimizer.state." + name;
    tensor.path = i % 4 == 0 ? KeyPath{name} : KeyPath{"optimizer", "state." + name};
    if (i % 4 != 3) tensor.shape = i / 4 % 7 == 6 ? Dims{rows} : Dims{rows, 4096 + i / 4 % 7 * 128};
    tensor.placement = i % 4 == 3 ? Placement{.cuts = {}, .replicas = of_stage}
                                  : Placement{.cuts = {{.parts = of_stage / replicas}}, .replicas = replicas};
    if (expert_ranks > 1 && i % 4 != 3 && i / 4 % 7 < 3) {
      tensor.shape = {kExperts, rows, 7168};
      tensor.placement.cuts = cuts_of_stack(of_stage / replicas, expert_ranks);
      tensor.placement.domain = Domain::kExpert;
    }
    tensor.placement.pp_rank = static_cast<int>(i * stages / count);
    tensor.placement.is_local = tensor.placement.pp_rank == 0;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = argc > 1 ? std::atoll(argv[1]) : 10000;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 256, replicas = argc > 3 ? std::atoi(argv[3]) : 1,
            stages = argc > 4 ? std::atoi(argv[4]) : 1;
  const int64_t rows = argc > 5 ? std::atoll(argv[5]) : 8192;
  const int64_t expert_ranks = argc > 6 ? std::atoll(argv[6]) : 1;
  const std::vector<TensorState> tensors = make_tensors(count, ranks, replicas, stages, rows, expert_ranks);

  SaveLayout layout;
  const double layout_seconds = median_of_7([&] { layout = save_layout(tensors); });
  uint64_t fingerprint = 0;
  const double fingerprint_seconds = median_of_7([&] { fingerprint = layout.fingerprint(); });
  std::vector<HeldParts> places;
  for (int rank = 0; rank < ranks; ++rank) {
    HeldParts place;
    const int of_stage = ranks / stages, number = rank % of_stage;
    for (const SaveLayout::Kind& kind : layout.kinds)
      place.push_back(kind.pp_rank == rank / of_stage
                          ? std::optional(HeldPart{number % kind.parts(), number / kind.parts()})
                          : std::nullopt);
    places.push_back(place);
  }
  SavePlan plan;
  const double plan_seconds =
      median_of_7([&] { plan = make_save_plan(layout, places, Writers::kAll, ranks - 1); });
  const long plan_mib = peak_mib();

  int64_t items = 0;
  for_each_item(layout, plan, [&](const SaveItem&) { ++items; });
  uint64_t metadata_bytes = 0;  // of a file that is written, not kept
  const double encode_seconds = seconds_of([&] {
    encode_save_index(layout, plan, {}, [&](std::string_view piece) { metadata_bytes += piece.size(); });
  });
  fmt::print(
      "{{\"tensors\": {}, \"ranks\": {}, \"replicas\": {}, \"stages\": {}, \"expert_ranks\": {}, "
      "\"items\": {}, "
      "\"items_of_last_rank\": {}, "
      "\"layout\": {:.4f}, \"fingerprint\": {:.4f}, \"plan\": {:.4f}, "
      "\"planning\": {:.4f}, \"peak_mib_planning\": {}, \"encode_metadata\": {:.3f}, "
      "\"metadata_mib\": {}, \"peak_mib\": {}}}\n",
      count, ranks, replicas, stages, expert_ranks, items, plan.local_items.size(), layout_seconds,
      fingerprint_seconds, plan_seconds, layout_seconds + fingerprint_seconds + plan_seconds, plan_mib,
      encode_seconds, metadata_bytes >> 20, peak_mib());
}
