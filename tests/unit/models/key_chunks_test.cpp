// The CUDA kernels of keys' chunks and of merged parts without a GPU: their source on CPU threads against the
// plain forms, as fused_kernels_test.cpp runs the others. tests/gpu runs the compiled one.
#include <catch2/catch.hpp>

#include <cmath>

#include <ATen/TensorOperators.h>
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
#include "models/kernels/merge_parts/cuda.cuh"
#include "models/kernels/merge_parts/cuda.h"
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

TEST_CASE("the source of the CUDA kernel that merges parts of attention follows the plain form") {
  at::manual_seed(2);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool wide = GENERATE(false, true);
  struct Case {
    int64_t batch, heads, queries, head_dim;
    int64_t offset = 0;  // of heads' elements: none that 16 bytes divide
  };
  for (const Case& c : {Case{2, 3, 5, 16}, Case{1, 2, 70, 128}, Case{2, 1, 3, 192}, Case{1, 2, 9, 7},
                        Case{2, 2, 4, 16, 1}, Case{1, 1, 2, 520, 3}}) {
    CAPTURE(dtype, wide, c.batch, c.heads, c.queries, c.head_dim);
    const auto heads = [&](at::ScalarType of) {  // half of the queries of a tensor with tokens before heads
      return at::randn({c.batch, 2 * c.queries, c.heads, c.head_dim + c.offset})
          .to(of)
          .narrow(-1, c.offset, c.head_dim)
          .transpose(1, 2)
          .narrow(2, c.queries, c.queries);
    };
    const auto sums = [&] {
      return (at::randn({c.batch, c.heads, 2 * c.queries}) * 3).narrow(2, 0, c.queries);
    };
    const Tensor part = heads(dtype), output = heads(wide ? at::kFloat : dtype), lse = sums(),
                 part_lse = sums();
    lse.select(2, 0).fill_(-INFINITY);
    part_lse.select(2, c.queries - 1).fill_(-INFINITY);
    if (c.batch > 1) part_lse.select(0, 1).select(1, 0).fill_(-INFINITY);  // neither has a key
    const Tensor wanted = output.clone(), wanted_lse = lse.clone();
    plain::merge_parts(wanted, wanted_lse, part, part_lse);
    own::merge_parts(kOnThreads, output, lse, part, part_lse);
    CHECK(lse.eq(wanted_lse).logical_or(lse.sub(wanted_lse).abs().lt(2e-6)).all().item<bool>());
    const double nearly =
        output.scalar_type() == at::kFloat ? 1e-6 : 0.016;  // a bf16 may round the other way
    CHECK(output.sub(wanted).abs().max().item<double>() < nearly);
  }
  const Tensor x = at::zeros({1, 2, 3, 4}), lse = at::zeros({1, 2, 3});
  CHECK_THROWS(own::merge_parts(kOnThreads, x, lse, x.narrow(2, 0, 2), lse));
  CHECK_THROWS(own::merge_parts(kOnThreads, x, lse.narrow(2, 0, 2), x, lse));
  CHECK_THROWS(own::merge_parts(kOnThreads, x.to(at::kBFloat16), lse, x, lse));
  CHECK_THROWS(own::merge_parts(kOnThreads, x, lse.to(at::kBFloat16), x, lse));
}

}  // namespace hyperion::models
