// The predicted seconds of a step whose work another program has counted: benchmarks/simulated_peer.py prices
// torchtitan's operators by the model of time that `hyperion plan` has (trainer/plan/step_time.h).
//   benchmark_step_seconds CARD < WORK.json
// Reads {"gpus", "tensor", "context", "replicas", "network": Gb/s per GPU, "kernels": [{"family", "rate",
// "casts", "times", "launches", "bytes", "flops"}], "collectives": [{"group", "times", "sent", "overlaps"}]},
// and prints
// {"seconds": [fast, middle, slow], "families": {family: seconds in the middle}}.
#include <array>
#include <cstdio>
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/plan/plan_text.h"
#include "base/error.h"
#include "trainer/plan/step_time.h"

using namespace hyperion;
using namespace hyperion::trainer;
using nlohmann::json;

namespace {

constexpr std::array kRates = {"bf16",
                               "fp32",
                               "fp8",
                               "fp8_slow",
                               "grouped",
                               "cudnn_forward",
                               "cudnn_backward",
                               "flash_forward",
                               "flash_backward",
                               "flash_192_forward",
                               "flash_192_backward",
                               "efficient_forward",
                               "efficient_backward"};
static_assert(kRates.size() == static_cast<size_t>(Rate::kCount));

// Returns the value of an enumeration, up to `count`, that `name_of_value` calls `name`.
template <typename Enum, typename Names>
Enum named(const std::string& name, size_t count, const Names& name_of_value) {
  for (size_t i = 0; i < count; ++i)
    if (name_of_value(i) == name) return static_cast<Enum>(i);
  throw_config("\"{}\" is neither a family, a rate nor a group of a step", name);
}

StepWork work_of(const json& input) {
  StepWork work;
  const auto family = [](size_t i) { return name_of(static_cast<Family>(i)); };
  const auto rate = [](size_t i) { return std::string_view(kRates.at(i)); };
  const auto group = [](size_t i) { return parallel::name_of(parallel::kMeshDims.at(i)); };
  for (const json& row : input.at("kernels"))
    work.kernels.push_back(
        {.family = named<Family>(row.at("family"), static_cast<size_t>(Family::kCount), family),
         .times = row.at("times"),
         .launches = row.at("launches"),
         .bytes = row.at("bytes"),
         .flops = row.at("flops"),
         .rate = named<Rate>(row.at("rate"), kRates.size(), rate),
         .casts_to_float8 = row.at("casts")});
  for (const json& row : input.at("collectives"))
    work.collectives.push_back(
        {parallel::kMeshDims.at(named<size_t>(row.at("group"), parallel::kMeshDims.size(), group)),
         row.at("times"), row.at("sent"), row.at("overlaps")});
  return work;
}

int run(const std::string& card_name) {
  const CardRange card = app::known_card(card_name);
  const json input = json::parse(std::cin);
  const int gpus = input.at("gpus"), tensor = input.at("tensor"), context = input.at("context"),
            replicas = input.at("replicas");
  const parallel::Mesh mesh(
      {.dp_replicate = replicas, .dp_shard = gpus / tensor / replicas / context, .cp = context, .tp = tensor},
      gpus);
  const Cluster cluster{.network = input.at("network").get<double>() * 1e9 / 8};
  const StepWork work = work_of(input);
  const auto time_on = [&](const Card& end) {
    return step_time(work, {.mesh = mesh, .cluster = cluster, .card = end});
  };
  const StepTime fast = time_on(card.fast), middle = time_on(card.middle), slow = time_on(card.slow);
  json output{{"seconds", {fast.total(), middle.total(), slow.total()}}};
  for (size_t i = 0; i < static_cast<size_t>(Family::kCount); ++i)
    if (middle.seconds[i] > 0)
      output["families"][std::string(name_of(static_cast<Family>(i)))] = middle.seconds[i];
  fmt::print("{}\n", output.dump(1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw_config("usage: benchmark_step_seconds CARD < WORK.json");
    return run(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "benchmark_step_seconds: {}\n", error.what());
    return 2;
  }
}
