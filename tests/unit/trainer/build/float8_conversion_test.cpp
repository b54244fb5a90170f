// What a device can run of FP8, and what is said of the rest.
#include "trainer/build/float8_conversion.h"

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
  config::JobConfig config;
  config.model.converters = {config::Converter::kFloat8};
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

TEST_CASE("print_after_conversion says of each layer whether it is converted") {
  models::Transformer model(models::model_args("llama3", "debugmodel", {.n_layers = 1, .vocab_size = 64}));
  config::JobConfig config;
  config.model.converters = {config::Converter::kFloat8};
  config.model.print_after_conversion = true;
  config.quantize.linear.float8.filter_fqns = {"output"};
  const std::vector<std::string> log = convert_to_float8(model, config, kCpu).log;
  CHECK_THAT(log, Catch::VectorContains(
                      std::string("layers.0.feed_forward.w2: a linear layer of 256 x 768, converted")));
  CHECK_THAT(log, Catch::VectorContains(std::string("output: a linear layer of 64 x 256, left alone")));
  config.model.print_after_conversion = false;
  models::Transformer other(models::model_args("llama3", "debugmodel", {.n_layers = 1, .vocab_size = 64}));
  CHECK(log.size() == convert_to_float8(other, config, kCpu).log.size() + 8);
}

TEST_CASE("MXFP8 runs emulated on any device and is refused by name where a GPU has none") {
  const auto convert_to_mx = [](const char* recipe, const Float8Device& device, bool emulate) {
    models::Transformer model(models::model_args("llama3", "debugmodel", {.n_layers = 1, .vocab_size = 64}));
    config::JobConfig config;
    config.model.converters = {config::Converter::kMx};
    config.quantize.linear.mx.recipe_name = choice_of<float8::MxRecipe>(recipe).value();
    config.quantize.linear.mx.emulate = emulate;
    return convert_to_float8(model, config, device);
  };
  const Float8Device hopper{.cpu = false, .compute_capability = 90, .name = "NVIDIA H100"},
      blackwell{.cpu = false, .compute_capability = 100, .name = "NVIDIA B200"};
  for (const char* recipe : {"mxfp8_cublas", "mxfp8_cublas_rceil"}) {
    const auto refusal = [&](const Float8Device& device) {
      return error_of(ExitCode::kUsage, [&] { convert_to_mx(recipe, device, false); });
    };
    CHECK_THAT(refusal(hopper), Contains(recipe) && Contains("NVIDIA H100 (SM90)") &&
                                    Contains("SM100 or newer") &&
                                    Contains("quantize.linear.mx.emulate = true"));
    CHECK_THAT(refusal(kCpu), Contains("a CPU has no MXFP8 tensor cores"));
    CHECK_THAT(convert_to_mx(recipe, kCpu, true).log.front(),
               Contains("mxfp8: 7 of 8") && Contains(recipe) && Contains("emulated in the compute dtype"));
    const Float8Setup native = convert_to_mx(recipe, blackwell, false);
    CHECK_THAT(native.log.front(), Contains("by _scaled_mm on NVIDIA B200"));
    REQUIRE(native.warnings.size() == 1);
    CHECK_THAT(native.warnings.front(), Contains("have not been run on a GPU yet"));
    CHECK(native.codec == nullptr);
  }
  CHECK(convert_to_mx("mxfp8_emulated", hopper, false).converted.size() ==
        7);  // the head is in the default filter
}

TEST_CASE("FP8 experts run where libtorch has their product, emulated elsewhere, and the log says which do") {
  const auto convert_experts = [](bool blocks, const Float8Device& device, bool emulate, const char* name) {
    models::Transformer model(
        models::model_args("deepseek_v3", "debugmodel", {.n_layers = 3, .vocab_size = 64}));
    config::JobConfig config;
    config.model.converters = {blocks ? config::Converter::kGroupedMx : config::Converter::kGroupedFloat8};
    auto& experts = config.quantize.grouped_mm;
    experts.float8.fqns = experts.mx.fqns = {name};
    experts.float8.emulate = experts.mx.emulate = emulate;
    return convert_to_float8(model, config, device);
  };
  const auto refusal = [&](bool blocks, const Float8Device& device) {
    return error_of(ExitCode::kUsage, [&] { convert_experts(blocks, device, false, "experts"); });
  };
  const Float8Device hopper{.cpu = false, .compute_capability = 90, .name = "NVIDIA H100"},
      blackwell{.cpu = false, .compute_capability = 100, .name = "NVIDIA B200"},
      consumer{.cpu = false, .compute_capability = 120, .name = "NVIDIA RTX"};
  CHECK_THAT(refusal(false, kAda),
             Contains("quantize.grouped_mm.float8: experts cannot be multiplied in FP8 on "
                      "NVIDIA L4 (SM89)") &&
                 Contains("set quantize.grouped_mm.float8.emulate = true"));
  CHECK_THAT(refusal(false, consumer), Contains("9.0 and 10.0"));
  CHECK_THAT(refusal(true, hopper), Contains("quantize.grouped_mm.mx") && Contains("10.0"));
  CHECK_THAT(refusal(true, kCpu), Contains("on a CPU"));
  for (const bool blocks : {false, true}) {
    const Float8Setup native = convert_experts(blocks, blackwell, false, "experts");
    CHECK(native.converted == std::vector<std::string>{"layers.1.moe.experts", "layers.2.moe.experts"});
    CHECK_THAT(native.log.front(), Contains("experts of 2 of 2 layers converted") &&
                                       Contains("w1, w2 and w3") &&
                                       Contains("by _scaled_grouped_mm on NVIDIA B200"));
    REQUIRE(native.warnings.size() == 1);
    CHECK_THAT(native.warnings.front(), Contains("have not been run on a GPU yet"));
    const Float8Setup emulated = convert_experts(blocks, kCpu, true, "layers.2.");
    CHECK_THAT(emulated.log.at(0), Contains("1 of 2 layers") && Contains("emulated in"));
    CHECK_THAT(emulated.log.at(1), Contains("left alone: layers.1.moe.experts"));
    CHECK(emulated.warnings.empty());
  }
  CHECK_THAT(convert_experts(false, hopper, false, "experts").log.front(), Contains("segments of 16 rows"));
}

TEST_CASE("a layer whose part on a rank is no multiple of 16 is left alone with a warning unless emulated") {
  const auto group = parallel::make_fake_communicator("tp/0", 0, {0, 1});
  const auto converted = [&](bool emulate) {
    models::Transformer model(
        models::model_args("llama3", "debugmodel", {.n_layers = 1, .vocab_size = 64, .hidden_dim = 48}), 0,
        {group.get()});
    config::JobConfig config;
    config.model.converters = {config::Converter::kFloat8};
    config.quantize.linear.float8.emulate = emulate;
    return convert_to_float8(model, config, kAda);
  };
  const Float8Setup native = converted(false);
  CHECK(native.converted.size() == 5);  // w1, w3 and w2 are not among them
  std::string warnings;
  for (const std::string& line : native.warnings) warnings += line + "\n";
  CHECK_THAT(warnings,
             Contains("layers.0.feed_forward.w1, layers.0.feed_forward.w3: 48 x 256: the part of one "
                      "of 2 tensor parallel ranks is no multiple of 16 (of 48, it is 24); multiples "
                      "of 32 work") &&
                 Contains("256 x 48: the part of one of 2"));
  const Float8Setup emulated = converted(true);  // as torchtitan, which looks at the whole layer
  CHECK(emulated.converted.size() == 8);
  CHECK(emulated.warnings.empty());
}

}  // namespace hyperion::trainer
