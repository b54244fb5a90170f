#include "trainer/metrics/flops.h"

#include <catch2/catch.hpp>

namespace hyperion::trainer {
namespace {

FlopDimensions llama(int64_t parameters, int64_t vocab, int64_t dim, int64_t layers, int64_t heads,
                     int64_t seq_len) {
  return {parameters, vocab * dim, false, layers, heads, dim / heads, seq_len};
}

}  // namespace

// The figures that torchtitan v0.2.2 computes for its own flavours.
TEST_CASE("FLOPs a token of the llama3 flavours equal those of torchtitan") {
  const auto debug = [](int64_t seq) { return llama(6163712, 2048, 256, 6, 16, seq); };
  const auto b8 = [](int64_t seq) { return llama(8030261248, 128256, 4096, 32, 32, seq); };
  const auto b70 = [](int64_t seq) { return llama(70553706496, 128256, 8192, 80, 64, seq); };
  const auto b405 = [](int64_t seq) { return llama(405853388800, 128256, 16384, 126, 128, seq); };
  CHECK(flops_per_token_square(debug(2048)) == 71585280.0);
  CHECK(flops_per_token_square(debug(8192)) == 184831488.0);
  CHECK(flops_per_token_square(b8(2048)) == 48250773504.0);
  CHECK(flops_per_token_square(b8(8192)) == 57914449920.0);
  CHECK(flops_per_token_square(b70(2048)) == 433124327424.0);
  CHECK(flops_per_token_square(b70(8192)) == 481442709504.0);
  CHECK(flops_per_token_square(b405(2048)) == 2473246556160.0);
  CHECK(flops_per_token_square(b405(8192)) == 2625449459712.0);
  CHECK(flops_per_token_causal(b8(8192)) == Approx(51.47e9).epsilon(1e-3));
}

TEST_CASE("The causal count of a tied model includes the matmul of its head") {
  FlopDimensions tied = {1100, 100, true, 1, 1, 0, 0};
  CHECK(flops_per_token_square(tied) == 6000.0);
  CHECK(flops_per_token_causal(tied) == 6600.0);
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

}  // namespace hyperion::trainer
