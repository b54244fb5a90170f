// What a device can run of FP8, and what is said of the rest.
#include "trainer/setup/float8_setup.h"

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"
#include "tests/support/error_of.h"

namespace hyperion::trainer {

using Catch::Contains;

namespace {

const Float8Device kCpu{}, kAmpere{.cpu = false, .compute_capability = 80, .name = "NVIDIA A100"},
    kAda{.cpu = false, .compute_capability = 89, .name = "NVIDIA L4"};

Float8Setup convert(const char* recipe, const Float8Device& device, bool emulate = false) {
  models::Transformer model(models::model_args("llama3", "debugmodel", {.n_layers = 1, .vocab_size = 64}));
  JobConfig config;
  config.model.converters = {Converter::kFloat8};
  config.quantize.linear.float8.recipe_name = choice_of<float8::Recipe>(recipe).value();
  config.quantize.linear.float8.emulate = emulate;
  return convert_to_float8(model, config, device);
}

}  // namespace

TEST_CASE("FP8 is refused where the hardware has none unless it is emulated") {
  const auto refusal = [](const char* recipe, const Float8Device& device) {
    return error_of(ExitCode::kUsage, [&] { convert(recipe, device); });
  };
  for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp"}) {
    INFO(recipe);
    CHECK_THAT(refusal(recipe, kAmpere), Contains("NVIDIA A100 (SM80)") && Contains("SM89 or newer") &&
                                             Contains("quantize.linear.float8.emulate = true"));
    CHECK(convert(recipe, kAmpere, /*emulate=*/true).converted.size() == 8);
    CHECK_THAT(convert(recipe, kAda).log.front(), Contains("by _scaled_mm on NVIDIA L4"));
    CHECK_THAT(convert(recipe, kAda, true).log.front(), Contains("emulated in fp32"));
  }
}

TEST_CASE("a CPU multiplies FP8 with one scale a tensor and emulates the other recipes") {
  CHECK(convert("tensorwise", kCpu).converted.size() == 8);
  for (const char* recipe : {"rowwise", "rowwise_with_gw_hp"}) {
    CHECK_THAT(error_of(ExitCode::kUsage, [&] { convert(recipe, kCpu); }),
               Contains(recipe) && Contains("emulate = true"));
    CHECK(convert(recipe, kCpu, true).converted.size() == 8);
  }
}

}  // namespace hyperion::trainer
