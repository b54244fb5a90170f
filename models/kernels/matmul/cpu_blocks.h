// Matrix products c = a b on raw pointers: what one thread computes, for AVX-512, with pairs of bf16 numbers
// or with bf16 widened to fp32 when it is packed.
// models/kernels/matmul/matmul.h has the rest. As attention/cpu_blocks.h says, nothing here may be shared
// with files for other processors.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

// Columns of the result are worked on in panels of so many, rows in tiles.
inline constexpr int64_t kPanel = 64, kTile = 6;

// A matrix of the call's element type: the distances of neighbours in elements, one of which is 1.
struct Matrix {
  const void* data;
  int64_t row_stride, column_stride;
};

struct ProductCall {
  Matrix a;            // [rows, depth]
  const void* panels;  // of b, as pack() leaves them, one after the other
  int64_t rows, depth, columns;
  void* c;           // [rows, columns] with neighbouring columns
  int64_t c_stride;  // of rows, in elements
};

struct ProductKernels {
  int64_t (*panel_bytes)(int64_t depth);
  // Columns [first, first + kPanel) of b, [depth, columns].
  void (*pack)(const Matrix& b, int64_t depth, int64_t columns, int64_t first, void* panel);
  // Whether a call needs no unit that lies across rows: bf16 numbers are multiplied in pairs along the depth.
  bool (*takes)(const Matrix& a, int64_t depth);
  int64_t (*scratch_bytes)(const ProductCall& call);
  // Rows of the tiles [first, last). An element's sum has one order, whatever tiles are computed together.
  void (*multiply)(const ProductCall& call, int64_t first, int64_t last, void* scratch);
};

struct MatmulBlocks {
  ProductKernels fp32, bf16;
};
// On x86-64 only:
const MatmulBlocks& matmul_blocks_avx512();
const MatmulBlocks& matmul_blocks_avx512_bf16();

}  // namespace hyperion::kernels::cpu
