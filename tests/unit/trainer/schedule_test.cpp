// The order of a step, as a list: without tensors and ranks.
#include "trainer/schedule.h"

#include <catch2/catch.hpp>
#include <fmt/format.h>

namespace hyperion::trainer {
namespace {

// "F0.1+2": the forward of microbatch 0 through unit 1, while unit 2 is gathered.
std::string text(const Schedule& schedule) {
  std::string all;
  for (const auto& [what, microbatch, unit, prefetch, stage, last] : schedule) {
    constexpr std::string_view kLetters = "FLBgfarES>{<}";  // {, }: receives
    all += fmt::format("{}{}", all.empty() ? "" : " ", kLetters.at(static_cast<size_t>(what)));
    if (what == Do::kSumReplicated) continue;
    all += fmt::format("{}", microbatch);
    if (what != Do::kFinish) all += fmt::format(".{}", unit);
    if (prefetch) all += fmt::format("+{}", *prefetch);
  }
  return all;
}

}  // namespace

TEST_CASE("one microbatch goes through the units and back, with two units gathered at once") {
  CHECK(text(training_schedule(4, 1, /*reshard_after_forward=*/true, /*reduce_once=*/false)) ==
        "F0.0+1 f0.0 F0.1+2 f0.1 F0.2+3 f0.2 "
        "L0.3+2 f0.3 r0.3 B0.2+1 f0.2 r0.2 B0.1 f0.1 r0.1 B0.0 f0.0 r0.0 E0 S");
}

TEST_CASE("without resharding after forward a weight is freed after its backward alone") {
  CHECK(text(training_schedule(3, 1, /*reshard_after_forward=*/false, /*reduce_once=*/false)) ==
        "F0.0+1 F0.1+2 L0.2+1 f0.2 r0.2 B0.1 f0.1 r0.1 B0.0 f0.0 r0.0 E0 S");
}

TEST_CASE("microbatches follow each other and gradients of all tensor parallel ranks are added up once") {
  const std::string one = text(training_schedule(3, 1, true, false)),
                    two = text(training_schedule(3, 2, true, false));
  std::string second = one;
  for (size_t at = 1; at < second.size(); ++at)
    if (second[at] == '0' && std::isalpha(second[at - 1]) != 0) second[at] = '1';
  CHECK(two == one.substr(0, one.size() - 2) + " " + second);
}

TEST_CASE("gradients that are reduced once are added up in each microbatch and sent in the last one") {
  CHECK(text(training_schedule(3, 2, /*reshard_after_forward=*/false, /*reduce_once=*/true)) ==
        "F0.0+1 F0.1+2 L0.2+1 f0.2 a0.2 B0.1 f0.1 a0.1 B0.0 f0.0 a0.0 E0 "
        "F1.0+1 F1.1+2 L1.2+1 f1.2 r1.2 B1.1 f1.1 r1.1 B1.0 f1.0 r1.0 E1 S");
  CHECK(text(training_schedule(3, 1, true, true)) == text(training_schedule(3, 1, true, false)));
}

TEST_CASE("an evaluation is forwards alone") {
  CHECK(text(evaluation_schedule(4)) == "F0.0+1 f0.0 F0.1+2 f0.1 F0.2+3 f0.2 L0.3 f0.3 E0");
}

}  // namespace hyperion::trainer
