// Matrix products of blocks in the caches, for files that are compiled once per instruction set.
#pragma once

#include "models/kernels/common/vectors.h"

namespace hyperion::kernels::cpu {
namespace {

// The memory layout of the broadcast operand b: contiguous along the depth, or along the rows of the result.
enum class Layout { kAlongDepth, kAlongRows };
// The initial value of c: zero, c, or c times a factor for each row.
enum class Start { kZero, kAdd, kAddScaled };

// The operands of c[row][lane] = sum over depth of a[depth][lane] * b(row, depth). a and b consist of units,
// c of floats. The template argument kLdb of the functions below is ldb if it is known at compile time, else
// 0.
template <typename U>
struct Operands {
  const typename U::Unit* a;
  int64_t lda;
  const typename U::Unit* b;
  int64_t ldb;
  int64_t depth;
  float* c;
  int64_t ldc;
  const float* factors = nullptr;  // for kAddScaled: one for each row of c
};

// Computes a tile of kRows rows and kVectors vectors of lanes, with the sums in registers.
template <typename U, Layout kLayout, Start kStart, int64_t kLdb, int kVectors, int kRows>
HYPERION_INLINE void tile(const Operands<U>& in, int64_t lane, int64_t row) {
  const int64_t ldb = kLdb == 0 ? in.ldb : kLdb;
  const auto* a = in.a + lane;
  const auto* b = in.b + (kLayout == Layout::kAlongDepth ? row * ldb : row);
  float* c = in.c + row * in.ldc + lane;
  Floats sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kStart == Start::kZero) sums[r][v] = Floats{};
      if constexpr (kStart == Start::kAdd) sums[r][v] = load(c + r * in.ldc + v * kLanes);
      if constexpr (kStart == Start::kAddScaled)
        sums[r][v] = load(c + r * in.ldc + v * kLanes) * in.factors[row + r];
    }
  for (int64_t k = 0; k < in.depth; ++k) {
    typename U::Units lanes[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) lanes[v] = U::load_units(a + k * in.lda + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto one = U::all_lanes(kLayout == Layout::kAlongDepth ? b[r * ldb + k] : b[k * ldb + r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = U::multiply_add(lanes[v], one, sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(c + r * in.ldc + v * kLanes, sums[r][v]);
}

template <typename U, Layout kLayout, Start kStart, int64_t kLdb, int kVectors, int kRows>
HYPERION_INLINE void tiles(const Operands<U>& in, int64_t lane, int64_t rows) {
  for (int64_t row = 0; row < rows; row += kRows)
    tile<U, kLayout, kStart, kLdb, kVectors, kRows>(in, lane, row);
}

// Computes the product. lanes and rows are multiples of 16.
template <typename U, Layout kLayout, Start kStart, int64_t kLdb = 0>
void product(const Operands<U>& in, int64_t lanes, int64_t rows) {
  // 16 sums in flight hide the latency of one; half as many where there are only 16 registers.
  constexpr int kWidest = kLanes == 16 ? 4 : 2, kTallest = kLanes == 16 ? 16 : 8;
  int64_t lane = 0;
  for (; lane + kWidest * kLanes <= lanes; lane += kWidest * kLanes)
    tiles<U, kLayout, kStart, kLdb, kWidest, kTallest / kWidest>(in, lane, rows);
  if constexpr (kWidest == 4) {
    const int64_t left = (lanes - lane) / kLanes;
    if (left == 3) tiles<U, kLayout, kStart, kLdb, 3, 4>(in, lane, rows);
    if (left == 2) tiles<U, kLayout, kStart, kLdb, 2, 8>(in, lane, rows);
    if (left == 1) tiles<U, kLayout, kStart, kLdb, 1, 16>(in, lane, rows);
  }
}

}  // namespace
}  // namespace hyperion::kernels::cpu
