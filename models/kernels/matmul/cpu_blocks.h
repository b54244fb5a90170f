// The work of one thread in matrix products c = a b, on raw pointers, for AVX-512: with pairs of bf16
// numbers, or with bf16 that packing widens to fp32. models/kernels/matmul/matmul.h is the public header. As
// attention/cpu_blocks.h says, nothing here may be shared with files for other processors.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

// The result is computed in panels of columns and tiles of rows.
inline constexpr int64_t kPanel = 64, kTile = 6;

// A matrix of the call's element type. Strides count elements, and one of them is 1.
struct Matrix {
  const void* data;
  int64_t row_stride, column_stride;
};

struct ProductCall {
  Matrix a;            // [rows, depth]
  const void* panels;  // the panels of b, as pack() writes them, contiguous
  int64_t rows, depth, columns;
  void* c;           // [rows, columns], row-major
  int64_t c_stride;  // between rows, in elements
};

struct ProductKernels {
  int64_t (*panel_bytes)(int64_t depth);
  // Packs columns [first, first + kPanel) of b, [depth, columns].
  void (*pack)(const Matrix& b, int64_t depth, int64_t columns, int64_t first, void* panel);
  // Returns whether no unit lies across rows: bf16 numbers are multiplied in pairs along the depth.
  bool (*takes)(const Matrix& a, int64_t depth);
  int64_t (*scratch_bytes)(const ProductCall& call);
  // Computes the tiles [first, last) of rows. The order of an element's sum does not depend on the range.
  void (*multiply)(const ProductCall& call, int64_t first, int64_t last, void* scratch);
};

struct MatmulBlocks {
  ProductKernels fp32, bf16;
};
// These exist on x86-64 only.
const MatmulBlocks& matmul_blocks_avx512();
const MatmulBlocks& matmul_blocks_avx512_bf16();

}  // namespace hyperion::kernels::cpu
