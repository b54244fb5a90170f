// The CUDA kernel of keys' chunks without a GPU: its source on CPU threads against the plain forms, as
// fused_kernels_test.cpp runs the others. tests/gpu runs the compiled one.
#include <catch2/catch.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"

// The kernel comes after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/kernels/key_chunks/cuda.cuh"
#include "models/kernels/key_chunks/cuda.h"
// clang-format on

namespace hyperion::models {

using at::Tensor;
namespace own = kernels::cuda;
namespace plain = kernels::plain;

TEST_CASE("the source of the CUDA kernel of keys' chunks moves what the plain forms move, bit for bit") {
  at::manual_seed(1);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool wide = GENERATE(false, true);
  struct Case {
    int64_t parts, ranks, batch, tokens, heads, head_dim;
    int64_t reached;     // of the sequence's chunks
    int64_t offset = 0;  // of heads' elements: none that 16 bytes divide
  };
  for (const Case& c :
       {Case{2, 3, 2, 5, 2, 16, 6}, Case{2, 3, 2, 5, 2, 16, 4}, Case{2, 4, 1, 20, 2, 64, 7},
        Case{1, 4, 1, 3, 1, 128, 2}, Case{2, 2, 3, 3, 2, 7, 3}, Case{2, 2, 1, 2, 3, 16, 4, 1},
        Case{2, 1, 1, 2, 16, 200, 1, 3}, Case{1, 1, 2, 4, 2, 8, 1}, Case{3, 2, 1, 1, 1, 8, 5}}) {
    CAPTURE(dtype, wide, c.parts, c.ranks, c.tokens, c.heads, c.head_dim, c.reached);
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape).to(dtype).narrow(-1, c.offset, c.head_dim);
    };
    const int64_t length = c.reached * c.tokens, row = c.head_dim + c.offset;
    // Tokens before heads, as a projection leaves them, and heads before tokens.
    const Tensor k = random({c.batch, length, c.heads, row}).transpose(1, 2),
                 v = random({c.batch, c.heads, length, row});
    const auto chunk_dtype = wide ? at::kFloat : dtype;
    const Tensor made = at::full({c.parts, c.ranks, 2, c.batch, c.tokens, c.heads, c.head_dim}, 3.0,
                                 at::TensorOptions(chunk_dtype)),
                 wanted = made.clone();
    own::pack_keys(kOnThreads, made, k, v);
    plain::pack_keys(wanted, k, v);
    CHECK(made.equal(wanted));
    own::add_keys(kOnThreads, made, v, k);
    plain::add_keys(wanted, v, k);
    CHECK(made.equal(wanted));
    for (int64_t first_part = 0; first_part < c.parts; ++first_part)
      for (int64_t parts = 1; first_part + parts <= c.parts; ++parts) {
        const Tensor keys = at::zeros({2, c.batch, length, c.heads, c.head_dim}, at::TensorOptions(dtype)),
                     others = keys.clone();
        own::unpack_keys(kOnThreads, keys, wanted.narrow(0, first_part, parts), first_part);
        plain::unpack_keys(others, wanted.narrow(0, first_part, parts), first_part);
        CHECK(keys.equal(others));
      }
  }
}

TEST_CASE("the CUDA kernel of keys' chunks refuses what its strides would not describe") {
  const Tensor chunks = at::zeros({2, 2, 2, 1, 3, 2, 4}), k = at::zeros({1, 2, 12, 4});
  own::pack_keys(kOnThreads, chunks, k, k);
  CHECK_THROWS(own::pack_keys(kOnThreads, chunks, k, k.narrow(2, 0, 9)));
  CHECK_THROWS(own::pack_keys(kOnThreads, chunks, k.narrow(2, 0, 11), k.narrow(2, 0, 11)));
  CHECK_THROWS(own::pack_keys(kOnThreads, chunks.narrow(0, 0, 1), k, k));
  CHECK_THROWS(own::pack_keys(kOnThreads, chunks, k.to(at::kBFloat16), k));
  CHECK_THROWS(own::pack_keys(kOnThreads, chunks.to(at::kBFloat16), k, k));
  CHECK_THROWS(own::add_keys(kOnThreads, chunks, k.transpose(2, 3).contiguous().transpose(2, 3), k));
}

}  // namespace hyperion::models
