#include "trainer/metrics/flops.h"

#include <tuple>

#include <catch2/catch.hpp>

#include "models/flavors/registry.h"

namespace hyperion::metrics {

// The figures that torchtitan v0.2.2 computes for its own flavours.
TEST_CASE("FLOPs a token of the llama3 flavours equal those of torchtitan") {
  const models::ModelDescription debug = models::describe_model(models::model_args("llama3", "debugmodel"));
  const models::ModelDescription b8 = models::describe_model(models::model_args("llama3", "8B"));
  const models::ModelDescription b70 = models::describe_model(models::model_args("llama3", "70B"));
  const models::ModelDescription b405 = models::describe_model(models::model_args("llama3", "405B"));
  CHECK(flops_per_token_square(debug, 2048) == 71585280.0);
  CHECK(flops_per_token_square(debug, 8192) == 184831488.0);
  CHECK(flops_per_token_square(b8, 2048) == 48250773504.0);
  CHECK(flops_per_token_square(b8, 8192) == 57914449920.0);
  CHECK(flops_per_token_square(b70, 2048) == 433124327424.0);
  CHECK(flops_per_token_square(b70, 8192) == 481442709504.0);
  CHECK(flops_per_token_square(b405, 2048) == 2473246556160.0);
  CHECK(flops_per_token_square(b405, 8192) == 2625449459712.0);
  CHECK(flops_per_token_causal(b8, 8192) == Approx(51.47e9).epsilon(1e-3));
}

TEST_CASE("The causal count of a tied model includes the matmul of its head") {
  models::ModelArgs args = models::model_args("llama3", "debugmodel");
  args.tied = true;
  const models::ModelDescription tied = models::describe_model(args);
  const double head = 6.0 * 2048 * 256;
  CHECK(flops_per_token_causal(tied, 0) == flops_per_token_square(tied, 0) + head);
}

TEST_CASE("a layer with a window counts the pairs inside it") {
  const models::ModelOverrides windows{.sliding_window_size = 100, .full_attention_every = 2};
  const models::ModelDescription with = models::describe_model(models::model_args("llama3", "8B", windows)),
                                 without = models::describe_model(models::model_args("llama3", "8B"));
  CHECK(with.windows() == 16);
  REQUIRE(with.kinds.size() == 2);
  CHECK(flops_per_token_causal(with, 100) == flops_per_token_causal(without, 100));
  // Of 8192 tokens each sees 100 keys, the first 99 fewer: half of those that the formula of full attention
  // counts is 4096.
  const double fewer = 16 * 6.0 * 32 * 256 * (4096 - (100 - 100.0 * 100 / (2 * 8192)));
  CHECK(flops_per_token_causal(without, 8192) - flops_per_token_causal(with, 8192) == Approx(fewer));
  CHECK(flops_per_token_square(without, 8192) - flops_per_token_square(with, 8192) == Approx(2 * fewer));
}

TEST_CASE("Peak FLOPs are found by the driver's device names whatever their case") {
  CHECK(gpu_peak_flops("NVIDIA A100-SXM4-80GB").flops == 312e12);
  CHECK(gpu_peak_flops("NVIDIA H100 80GB HBM3").flops == 989e12);
  CHECK(gpu_peak_flops("NVIDIA H100 NVL").flops == 835e12);
  CHECK(gpu_peak_flops("NVIDIA H100 PCIe").flops == 756e12);
  CHECK(gpu_peak_flops("NVIDIA H200").flops == 989e12);
  CHECK(gpu_peak_flops("NVIDIA GH200 480GB").flops == 989e12);
  CHECK(gpu_peak_flops("NVIDIA H200 NVL").flops == 835e12);
  CHECK(gpu_peak_flops("NVIDIA H20").flops == 148e12);
  CHECK(gpu_peak_flops("NVIDIA GB200").flops == 2.25e15);
  CHECK(gpu_peak_flops("AMD Instinct MI300X").flops == 1.3e15);
  CHECK(gpu_peak_flops("AMD Instinct MI250X/MI250").flops == 191.5e12);
  CHECK(gpu_peak_flops("NVIDIA L40S").flops == 362e12);
  CHECK(gpu_peak_flops("nvidia l40s").known);
  const PeakFlops unknown = gpu_peak_flops("NVIDIA GeForce RTX 4090");
  CHECK(unknown.flops == 312e12);
  CHECK_FALSE(unknown.known);
}

TEST_CASE("of experts only those of one token cost FLOPs, as torchtitan counts them") {
  // get_nparams_and_flops(model, 2048) of torchtitan v0.2.2
  for (const auto& [name, flavor, flops] : {std::tuple("qwen3", "30B-A3B", 23083044864.0),
                                            {"qwen3", "235B-A22B", 148335301632.0},
                                            {"deepseek_v3", "16B", 16407303168.0},
                                            {"deepseek_v3", "671B", 250455926784.0},
                                            {"llama4", "17bx16e", 102870251520.0}}) {
    CAPTURE(name, flavor);
    CHECK(flops_per_token_square(models::describe_model(models::model_args(name, flavor)), 2048) == flops);
  }
}

}  // namespace hyperion::metrics
