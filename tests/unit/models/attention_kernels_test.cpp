// Which kernel of attention serves a call.
#include "models/kernels/attention/attention.h"

#include <catch2/catch.hpp>

#include "tests/support/error_of.h"

namespace hyperion::models {

TEST_CASE("a kernel of attention says which masks it serves") {
  using enum kernels::AttentionKernel;
  using enum kernels::MaskKind;
  const auto serves = [](kernels::AttentionKernel kernel, kernels::MaskKind mask, int64_t keys) {
    return kernels::serves(kernel, {at::kBFloat16, 128, 128, 128, keys, mask});
  };
  for (const auto kernel : {kCpu, kPlain, kFlash, kEfficient})
    for (const auto mask : {kCausal, kDocuments, kAllKeys})
      for (const int64_t keys : {128, 192}) CHECK(serves(kernel, mask, keys));
  for (const auto kernel : {kLibtorchCpu, kCudnn}) {
    CHECK(serves(kernel, kCausal, 128));
    CHECK(serves(kernel, kAllKeys, 128));
    CHECK(serves(kernel, kAllKeys, 64));
    CHECK_FALSE(serves(kernel, kDocuments, 128));
  }
  const auto serves_window = [](kernels::AttentionKernel kernel, kernels::MaskKind mask, int64_t keys) {
    return kernels::serves(kernel, {at::kBFloat16, 128, 128, 128, keys, mask, /*window=*/8});
  };
  for (const auto mask : {kCausal, kDocuments}) {
    for (const auto kernel : {kCpu, kPlain, kFlash})
      for (const int64_t keys : {128, 192}) CHECK(serves_window(kernel, mask, keys));
    for (const auto kernel : {kLibtorchCpu, kCudnn}) CHECK_FALSE(serves_window(kernel, mask, 128));
    CHECK(serves_window(kEfficient, mask, 128));
    CHECK_FALSE(serves_window(kEfficient, mask, 192));  // its backward places the window wrongly
  }
  CHECK_FALSE(serves(kLibtorchCpu, kCausal, 192));  // causal from the first key
  CHECK(serves(kCudnn, kCausal, 192));              // in two calls
}

TEST_CASE("the kernel of attention follows from dtype, head size, lengths, mask and what was asked for") {
  using enum kernels::AttentionKernel;
  using enum kernels::MaskKind;
  const auto chosen = [](const kernels::AttentionCall& call, at::Device device = at::kCUDA) {
    return kernels::attention_kernel(call, device);
  };
  const kernels::AttentionCall square = {at::kBFloat16, 128, 128, 128, 128};
  CHECK(chosen(square) == kCudnn);
  CHECK(chosen({at::kBFloat16, 136, 136, 128, 128}) == kFlash);
  CHECK(chosen({at::kBFloat16, 128, 128, 1, 1}) == kFlash);
  CHECK(chosen({at::kBFloat16, 264, 264, 128, 128}) == kEfficient);
  CHECK(chosen({at::kBFloat16, 128, 128, 128, 128, kDocuments}) == kFlash);
  CHECK(chosen({at::kFloat, 128, 128, 128, 128}) == kEfficient);
  CHECK(chosen({at::kFloat, 128, 128, 128, 128, kDocuments}) == kEfficient);
  CHECK(chosen({at::kBFloat16, 128, 128, 64, 128}) == kCudnn);
  CHECK(chosen({at::kBFloat16, 128, 128, 64, 128, kCausal, /*window=*/8}) == kFlash);
  CHECK(chosen({at::kFloat, 128, 128, 128, 128, kCausal, 8}) == kEfficient);
  CHECK(chosen({at::kFloat, 128, 128, 64, 128, kCausal, 8}, at::kCPU) == kCpu);
  CHECK_THAT(error_of(ExitCode::kUsage,
                      [&] {
                        chosen({at::kFloat, 128, 128, 64, 128, kCausal, 8});
                      }),
             Catch::Matchers::Contains("a window of 8 to more keys (128) than queries (64)"));
  CHECK(chosen({at::kBFloat16, 128, 128, 64, 100}) == kFlash);
  CHECK(chosen({at::kBFloat16, 128, 128, 128, 64, kAllKeys}) == kCudnn);
  CHECK(chosen({at::kBFloat16, 128, 128, 128, 60, kAllKeys}) == kFlash);
  for (const auto mask : {kCausal, kAllKeys})
    CHECK(chosen({at::kBFloat16, 192, 128, 128, 128, mask}) == kCudnn);
  CHECK(chosen({at::kBFloat16, 192, 128, 128, 128, kDocuments}) == kFlash);
  CHECK(chosen({at::kBFloat16, 192, 192, 128, 128}) == kFlash);
  CHECK(chosen({at::kBFloat16, 192, 64, 128, 128}) == kFlash);
  CHECK(chosen({at::kBFloat16, 128, 64, 128, 128}) == kFlash);
  CHECK(chosen({at::kFloat, 192, 128, 128, 128}) == kEfficient);
  CHECK(chosen(square, at::kCPU) == kCpu);
  CHECK(chosen({at::kDouble, 128, 128, 128, 128}, at::kCPU) == kPlain);
  CHECK(chosen({at::kFloat, 257, 257, 128, 128}, at::kCPU) == kPlain);
  kernels::use_libtorch_attention_on_cpu(true);
  CHECK(chosen(square, at::kCPU) == kLibtorchCpu);
  CHECK(chosen({at::kBFloat16, 128, 128, 128, 128, kDocuments}, at::kCPU) == kCpu);
  CHECK(chosen({at::kBFloat16, 128, 128, 64, 128}, at::kCPU) == kCpu);
  kernels::use_libtorch_attention_on_cpu(false);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  CHECK(chosen(square) == kFlash);
  at::globalContext().setDeterministicAlgorithms(false, false);
  kernels::allow_cudnn_attention(false);
  CHECK(chosen(square) == kFlash);
  const kernels::AttentionCall latent = {at::kBFloat16, 192, 128, 128, 128};
  CHECK(kernels::value_width(latent, at::kCUDA) == 192);
  kernels::allow_cudnn_attention(true);
  CHECK(kernels::value_width(latent, at::kCUDA) == 128);
  CHECK(kernels::value_width(latent, at::kCPU) == 192);
  CHECK(kernels::value_width({at::kBFloat16, 128, 64, 128, 128}, at::kCUDA) == 128);
}

}  // namespace hyperion::models
