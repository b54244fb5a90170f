#include "trainer/build/float8_conversion.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "models/float8/cast.h"
#include "models/float8/choice.h"
#include "models/float8/grouped_matmuls.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/config/schema.h"

namespace hyperion::trainer {
namespace {

// Returns how the products run. Throws Error(kUsage) if this device cannot run them.
float8::Gemm gemm_of(const config::JobConfig& config, float8::Recipe recipe, const Float8Device& device) {
  constexpr int kFirstWithFp8 = 89;
  if (config.quantize.linear.float8.emulate) return float8::Gemm::kEmulated;
  if (device.cpu && recipe != float8::Recipe::kTensorwise)
    throw_config(
        "quantize.linear.float8.recipe_name = \"{}\": a CPU multiplies FP8 only with one scale per tensor; "
        "set "
        "quantize.linear.float8.emulate = true, or recipe_name = \"tensorwise\"",
        text_of(recipe));
  if (!device.cpu && device.compute_capability < kFirstWithFp8)
    throw_config(
        "quantize.linear.float8: {} (SM{}) has no FP8 tensor cores (SM89 or newer has); set "
        "quantize.linear.float8.emulate = true to train with the same numbers in fp32, or remove the "
        "converter",
        device.name, device.compute_capability);
  return float8::Gemm::kNative;
}

// Does the same for MXFP8.
float8::Gemm mx_gemm_of(const config::JobConfig::Quantize::Linear::Mx& options, const Float8Device& device) {
  constexpr int kFirstWithBlocks = 100;
  if (options.emulate || options.recipe_name == float8::MxRecipe::kEmulated) return float8::Gemm::kEmulated;
  if (device.cpu || device.compute_capability < kFirstWithBlocks)
    throw_config(
        "quantize.linear.mx.recipe_name = \"{}\": {} has no MXFP8 tensor cores (SM100 or newer has); set "
        "quantize.linear.mx.emulate = true to train with the same numbers in the compute dtype, or remove "
        "the converter",
        text_of(options.recipe_name),
        device.cpu ? "a CPU" : fmt::format("{} (SM{})", device.name, device.compute_capability));
  return float8::Gemm::kNative;
}

// "wq, wk and 12 more", of many names.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kShown, ", "),
                     names.size() - kShown);
}

std::shared_ptr<const parallel::GatherCodec> make_codec(std::set<const Parameter*> parameters, bool eager) {
  parallel::GatherCodec codec;
  codec.dtype = float8::kE4m3;
  codec.applies = [parameters = std::move(parameters)](const Parameter& parameter) {
    return parameters.contains(&parameter);
  };
  codec.statistics = float8::amaxes;
  codec.scales = [](const at::Tensor& amaxes) {
    const float8::Scales made = float8::scales_of(amaxes, float8::kE4m3, /*power_of_two=*/false);
    return std::pair(made.scale, made.inverse);
  };
  codec.encode = [](const at::Tensor& master, const at::Tensor& scale, const at::Tensor& out) {
    float8::cast_into(out, master, scale);
  };
  codec.eager = eager;
  return std::make_shared<const parallel::GatherCodec>(std::move(codec));
}

std::vector<float8::LinearShape> shapes_of(models::Transformer& model) {
  std::vector<float8::LinearShape> shapes;
  for (const auto& [name, linear] : model.linears()) {
    const Parameter& weight = *linear->weight();
    int64_t parts = 1;
    for (const Cut& cut : weight.cuts) parts *= cut.parts;
    shapes.push_back({name, weight.shape.at(0), weight.shape.at(1), parts, weight.split.value_or(0)});
  }
  return shapes;
}

// Gives the chosen layers these products, and says so: `what` of how many layers, and why the others not.
void convert(models::Transformer& model, const std::vector<float8::Choice>& choices,
             const std::shared_ptr<const float8::LinearMatmuls>& matmuls, Float8Setup& setup,
             const std::string& name, const std::string& what) {
  const auto linears = model.linears();
  std::map<std::string, std::vector<std::string>> left_alone, by_part;  // by reason
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto& [layer, linear] = linears[i];
    if (!choices[i].why_not.empty()) {
      (choices[i].by_part ? by_part : left_alone)[choices[i].why_not].push_back(layer);
      continue;
    }
    linear->set_float8(matmuls);
    setup.converted.push_back(layer);
  }
  setup.log.push_back(fmt::format("{}: {} of {} linear layers converted, {}", name, setup.converted.size(),
                                  linears.size(), what));
  for (const auto& [reason, layers] : left_alone)
    setup.log.push_back(fmt::format("{}: left alone: {}: {}", name, some_of(layers), reason));
  for (const auto& [reason, layers] : by_part)
    setup.warnings.push_back(
        fmt::format("{}: left alone, though converted on one rank: {}: {}", name, some_of(layers), reason));
}

void convert_to_mx(models::Transformer& model, const config::JobConfig& config, const Float8Device& device,
                   Float8Setup& setup) {
  const auto& options = config.quantize.linear.mx;
  const float8::Gemm gemm = mx_gemm_of(options, device);
  const auto shapes = shapes_of(model);
  setup.warnings = float8::unmatched_filters(shapes, options.filter_fqns, "quantize.linear.mx");
  const bool emulated = gemm == float8::Gemm::kEmulated;
  convert(model, float8::choose_mx_layers(shapes, options.filter_fqns),
          std::make_shared<const float8::LinearMatmuls>(options.recipe_name, gemm, setup.counters), setup,
          "mxfp8",
          fmt::format("recipe {}, products {}", text_of(options.recipe_name),
                      emulated ? "emulated in the compute dtype" : "by _scaled_mm on " + device.name));
  if (!emulated)
    setup.warnings.push_back(
        "mxfp8: these products have not been run on a GPU yet; compare the loss with that of "
        "quantize.linear.mx.emulate = true first");
}

// Returns how grouped products run. Throws Error(kUsage) if this device cannot run them.
float8::Gemm grouped_gemm_of(const std::string& table, float8::GroupedRecipe recipe, bool emulate,
                             const Float8Device& device) {
  if (emulate) return float8::Gemm::kEmulated;
  const bool blocks = recipe == float8::GroupedRecipe::kMx;
  const char* why_not =
      device.cpu ? "a CPU has no such product" : float8::why_not_grouped(blocks, device.compute_capability);
  if (why_not != nullptr)
    throw_config(
        "{}: experts cannot be multiplied in {} on {}: {}; set {}.emulate = true to train with the same "
        "numbers in {}, or remove the converter",
        table, blocks ? "MXFP8" : "FP8",
        device.cpu ? "a CPU" : fmt::format("{} (SM{})", device.name, device.compute_capability), why_not,
        table, blocks ? "the compute dtype" : "fp32");
  return float8::Gemm::kNative;
}

// Gives the experts that `options` of the converter `table` names FP8 products.
void convert_experts(models::Transformer& model, const auto& options, const std::string& table,
                     float8::GroupedRecipe recipe, const Float8Device& device, Float8Setup& setup) {
  const bool blocks = recipe == float8::GroupedRecipe::kMx;
  const float8::Gemm gemm = grouped_gemm_of(table, recipe, options.emulate, device);
  const auto matmuls = std::make_shared<const float8::GroupedMatmuls>(recipe, gemm, setup.counters);
  const auto all = model.experts();
  std::vector<std::string> converted, left_alone;
  for (const auto& [name, experts] : all) {
    const bool chosen = std::ranges::any_of(
        options.fqns, [&](const std::string& part) { return name.find(part) != std::string::npos; });
    if (chosen) experts->set_float8(matmuls);
    (chosen ? converted : left_alone).push_back(name);
  }
  const char* kind = blocks ? "mxfp8" : "float8";
  setup.log.push_back(
      fmt::format("{}: experts of {} of {} converted, e4m3 with one scale for {}, in segments of {} rows; "
                  "products of w1, w2 and w3 in forward and for both gradients {}",
                  kind, converted.size(), counted(static_cast<int64_t>(all.size()), "layer"),
                  blocks ? "32 numbers" : "each row", matmuls->unit(),
                  gemm == float8::Gemm::kNative ? "by _scaled_grouped_mm on " + device.name
                  : blocks                      ? "emulated in the compute dtype"
                                                : "emulated in fp32"));
  if (!left_alone.empty())
    setup.log.push_back(fmt::format("{}: left alone: {}: in no entry of fqns", kind, some_of(left_alone)));
  setup.converted.insert(setup.converted.end(), converted.begin(), converted.end());
  if (gemm == float8::Gemm::kNative)
    setup.warnings.push_back(
        fmt::format("{}: grouped products have not been run on a GPU yet; compare the loss with that of "
                    "{}.emulate = true first",
                    kind, table));
}

void convert_linears(models::Transformer& model, const config::JobConfig& config, const Float8Device& device,
                     Float8Setup& setup) {
  const auto& options = config.quantize.linear.float8;
  const float8::Recipe recipe = options.recipe_name.value_or(float8::Recipe::kTensorwise);
  const float8::Gemm gemm = gemm_of(config, recipe, device);
  const auto shapes = shapes_of(model);
  setup.warnings = float8::unmatched_filters(shapes, options.filter_fqns);
  convert(
      model, float8::choose_layers(shapes, options.filter_fqns, recipe, gemm),
      std::make_shared<const float8::LinearMatmuls>(recipe, gemm, setup.counters), setup, "float8",
      fmt::format("recipe {}, products {}", text_of(recipe),
                  gemm == float8::Gemm::kEmulated ? "emulated in fp32" : "by _scaled_mm on " + device.name));
  if (options.enable_fsdp_float8_all_gather) {
    std::set<const Parameter*> gathered;
    for (const auto& [name, linear] : model.linears()) {
      const Parameter& weight = *linear->weight();
      // A tied head's weight is the embedding's table too, which reads it in the compute dtype; and the cast
      // on a GPU takes rows of whole units of 16, which a tensor parallel rank's part need not have in
      // emulation.
      const bool castable = device.cpu || weight.local.at(1) % 16 == 0;
      if (linear->float8() != nullptr && weight.aliases.empty() && castable) gathered.insert(&weight);
    }
    setup.codec = make_codec(gathered, options.precompute_float8_dynamic_scale_for_fsdp);
  }

  if (gemm == float8::Gemm::kNative && device.cpu)
    setup.warnings.push_back(
        "float8: libtorch's FP8 products on a CPU take about a thousand times as long as bf16's; "
        "quantize.linear.float8.emulate = true gives the same results within 45 dB and is hundreds of times "
        "faster here");
}

// A line for each linear layer and for each layer's experts (model.print_after_conversion).
void describe_layers(models::Transformer& model, Float8Setup& setup) {
  const std::set<std::string> converted(setup.converted.begin(), setup.converted.end());
  const auto add = [&](const std::string& name, const std::string& what) {
    setup.log.push_back(
        fmt::format("{}: {}, {}", name, what, converted.contains(name) ? "converted" : "left alone"));
  };
  for (const auto& [name, linear] : model.linears()) {
    const std::vector<int64_t>& shape = linear->weight()->shape;
    add(name, fmt::format("a linear layer of {} x {}", shape.at(0), shape.at(1)));
  }
  for (const auto& [name, experts] : model.experts()) add(name, "experts");
}

}  // namespace

Float8Setup convert_to_float8(models::Transformer& model, const config::JobConfig& config,
                              const Float8Device& device) {
  Float8Setup setup;
  if (!config::kConverters.on(config)) return setup;
  setup.counters = std::make_shared<float8::Counters>();
  if (config::kFloat8.on(config)) convert_linears(model, config, device, setup);
  if (config::kMx.on(config)) convert_to_mx(model, config, device, setup);
  const auto& experts = config.quantize.grouped_mm;
  if (config::kGroupedFloat8.on(config))
    convert_experts(model, experts.float8, "quantize.grouped_mm.float8", float8::GroupedRecipe::kRowwise,
                    device, setup);
  if (config::kGroupedMx.on(config))
    convert_experts(model, experts.mx, "quantize.grouped_mm.mx", float8::GroupedRecipe::kMx, device, setup);
  if (config.model.print_after_conversion) describe_layers(model, setup);
  return setup;
}

std::string describe_gathers(const std::vector<parallel::ShardedParameterPtr>& parameters,
                             const parallel::FsdpContext& fsdp) {
  const auto mib = [](int64_t bytes) {
    return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1 << 20));
  };
  const at::ScalarType compute = fsdp.options().compute_dtype;
  const auto width = static_cast<int64_t>(c10::elementSize(compute));
  const std::string_view plain = checkpoint::torch_name(checkpointing::dtype_of(compute));
  int64_t encoded = 0, others = 0;
  for (const parallel::ShardedParameterPtr& parameter : parameters)
    (parameter->encoded() ? encoded : others) += whole_box(parameter->parameter().local).numel();
  if (fsdp.shard().size() == 1)
    return fmt::format("float8: nothing is all-gathered; weights are cast once per step, from their {}",
                       encoded > 0 ? "fp32 masters" : fmt::format("{} copies", plain));
  if (encoded == 0)
    return fmt::format("float8: weights are all-gathered in {} ({}) and cast after each all-gather", plain,
                       mib(others * width));
  return fmt::format(
      "float8: an all-gather of all weights moves {} in float8_e4m3fn (in {} they would be {}) and {} of "
      "norms, embedding and layers left alone in {}",
      mib(encoded), plain, mib(encoded * width), mib(others * width), plain);
}

}  // namespace hyperion::trainer
