// A panel of b lies packed, depth after depth, so that a row of a panel is four vectors; numbers of a are
// broadcast. The sums of a tile of rows stay in registers over a block of the depth, whose part of the panel
// the second cache holds; sums of blocks are added up, which rounds less than one long sum.
#include "models/kernels/matmul/cpu_blocks.h"

#include <type_traits>

#include "models/kernels/common/packing.h"
#include "models/kernels/common/vectors.h"

namespace hyperion::kernels::cpu {
namespace {

constexpr int kPanelVectors = kPanel / kLanes;
constexpr int64_t kDepthBlock = 1024;  // units
// Tiles that use a panel while it is in the cache. Rows of `a` that are not packed take the second cache's
// room beside it; rows that are packed are worth more tiles, because their columns are read in longer pieces.
constexpr int64_t kTilesAtOnce = 8, kPackedTilesAtOnce = 16;

int64_t units_of(int64_t depth, int64_t per_unit) {
  return (depth + per_unit - 1) / per_unit;
}

template <typename U>
HYPERION_INLINE typename U::Unit unit_at(const void* from) {
  typename U::Unit unit;
  __builtin_memcpy(&unit, from, sizeof(unit));
  return unit;
}

template <typename U, typename Element>
int64_t panel_bytes(int64_t depth) {
  return units_of(depth, U::kPerUnit) * kPanel * static_cast<int64_t>(sizeof(typename U::Unit));
}

template <typename U, typename Element>
void pack(const Matrix& b, int64_t depth, int64_t columns, int64_t first, void* panel) {
  const int64_t count = columns - first < kPanel ? columns - first : kPanel;
  if (b.column_stride == 1) {  // rows of b become rows of the panel
    const Rows<Element> rows{static_cast<const Element*>(b.data) + first, b.row_stride, depth, count};
    pack_row_pairs<U, Element>(rows, units_of(depth, U::kPerUnit) * U::kPerUnit, kPanel,
                               static_cast<typename U::Unit*>(panel));
    return;
  }
  // Columns of b are contiguous: they become lanes.
  pack_lanes<U, Element>(
      {static_cast<const Element*>(b.data) + first * b.column_stride, b.column_stride, count, depth}, kPanel,
      units_of(depth, U::kPerUnit) * U::kPerUnit, static_cast<typename U::Unit*>(panel));
}

// The numbers that are broadcast: unit (row, k) is at data + row * row_stride + k * unit_stride, in numbers.
template <typename Number>
struct Broadcast {
  const Number* data;
  int64_t row_stride, unit_stride;
};

HYPERION_INLINE void put(float* to, const Floats (&sums)[kPanelVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) store(to + v * kLanes, sums[v]);
}
HYPERION_INLINE void put(Bf16* to, const Floats (&sums)[kPanelVectors]) {
#ifdef __AVX512BF16__
#pragma GCC unroll 2
  for (int v = 0; v < kPanelVectors; v += 2)
    _mm512_storeu_si512(to + v * kLanes, to_bf16(sums[v], sums[v + 1]));
#else
#pragma GCC unroll 4
  for (int v = 0; v < kPanelVectors; ++v) {
    const __m256i numbers = to_bf16(sums[v]);
    __builtin_memcpy(to + v * kLanes, &numbers, sizeof(numbers));
  }
#endif
}

// Output is where a tile's sums are accumulated and stored.
template <typename Element>
struct Output {
  float* sums;  // [rows of the tiles at once][kPanel]: between blocks of the depth
  bool first, last;
  Element* c;
  int64_t c_stride, columns;  // of this panel
};

// Prefetch is the panel that is multiplied next: each tile brings `bytes` of it into the L2 cache for each
// unit of its depth, and all tiles together the complete panel.
struct Prefetch {
  const char* from;
  int64_t bytes;
};

template <typename U, typename Number, typename Element, int kRows>
HYPERION_INLINE void multiply_tile(const Broadcast<Number>& a, const typename U::Unit* panel, int64_t depth,
                                   const Prefetch& prefetch, const Output<Element>& out, int64_t row) {
  Floats sums[kRows][kPanelVectors];
  float* before = out.sums + row * kPanel;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = Floats{};
  const Number* numbers = a.data + row * a.row_stride;
  const char* next = prefetch.from;
  for (int64_t k = 0; k < depth; ++k, numbers += a.unit_stride, panel += kPanel, next += prefetch.bytes) {
    __builtin_prefetch(next, /*write=*/0, /*second cache*/ 2);
    typename U::Units lanes[kPanelVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) lanes[v] = U::load_units(panel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto one = U::all_lanes(unit_at<U>(numbers + r * a.row_stride));
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = U::multiply_add(lanes[v], one, sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (!out.first)
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) sums[r][v] += load(before + r * kPanel + v * kLanes);
    Element* c = out.c + (row + r) * out.c_stride;
    if (!out.last) {
      put(before + r * kPanel, sums[r]);
    } else if (out.columns == kPanel) {
      put(c, sums[r]);
    } else {
      Element whole[kPanel];
      put(whole, sums[r]);
      for (int64_t i = 0; i < out.columns; ++i) c[i] = whole[i];
    }
  }
}

template <typename U, typename Number, typename Element>
void multiply_rows(const Broadcast<Number>& a, const typename U::Unit* panel, int64_t depth,
                   Prefetch prefetch, const Output<Element>& out, int64_t rows) {
  int64_t row = 0;
  for (; row + kTile <= rows; row += kTile, prefetch.from += depth * prefetch.bytes)
    multiply_tile<U, Number, Element, kTile>(a, panel, depth, prefetch, out, row);
  if (rows - row >= 4) {
    multiply_tile<U, Number, Element, 4>(a, panel, depth, prefetch, out, row);
    row += 4;
  }
  if (rows - row >= 2) {
    multiply_tile<U, Number, Element, 2>(a, panel, depth, prefetch, out, row);
    row += 2;
  }
  if (rows - row == 1) multiply_tile<U, Number, Element, 1>(a, panel, depth, prefetch, out, row);
}

template <typename U, typename Element>
bool takes(const Matrix& a, int64_t depth) {
  return a.column_stride != 1 || depth % U::kPerUnit == 0;
}

// Rows of `a` whose depth is not contiguous are packed: [units][rows at once].
bool packs_columns(const ProductCall& call) {
  return call.a.column_stride != 1;
}
int64_t tiles_at_once(const ProductCall& call) {
  return packs_columns(call) ? kPackedTilesAtOnce : kTilesAtOnce;
}
// The gap between widened rows, so that neighbouring rows share no set of the L1 cache.
constexpr int64_t kWidenedGap = kLanes;

template <typename U, typename Element>
int64_t packed_rows_bytes(const ProductCall& call) {
  const int64_t units = units_of(call.depth, U::kPerUnit), rows = tiles_at_once(call) * kTile,
                unit = static_cast<int64_t>(sizeof(typename U::Unit));
  if (packs_columns(call)) return units * rows * unit;
  return kWidens<U, Element> ? (units + kWidenedGap) * rows * unit : 0;
}

template <typename U, typename Element>
int64_t scratch_bytes(const ProductCall& call) {
  return packed_rows_bytes<U, Element>(call) +
         tiles_at_once(call) * kTile * kPanel * static_cast<int64_t>(sizeof(float));
}

template <typename U, typename Element>
void multiply(const ProductCall& call, int64_t first, int64_t last, void* scratch) {
  using Unit = typename U::Unit;
  using Number = std::conditional_t<kWidens<U, Element>, Unit, Element>;
  const int64_t units = units_of(call.depth, U::kPerUnit), rows_at_once = tiles_at_once(call) * kTile;
  const int64_t prefetched = kPanel * static_cast<int64_t>(sizeof(Unit)) / tiles_at_once(call);
  auto* packed = static_cast<Unit*>(scratch);
  auto* sums = reinterpret_cast<float*>(static_cast<char*>(scratch) + packed_rows_bytes<U, Element>(call));
  const auto* a = static_cast<const Element*>(call.a.data);
  const int64_t end = last * kTile < call.rows ? last * kTile : call.rows;
  for (int64_t row = first * kTile; row < end; row += rows_at_once) {
    const int64_t rows = end - row < rows_at_once ? end - row : rows_at_once;
    const Element* from = a + row * call.a.row_stride;
    Broadcast<Number> numbers{reinterpret_cast<const Number*>(packed), U::kPerUnit,
                              rows_at_once * U::kPerUnit};
    if (packs_columns(call)) {
      pack_row_pairs<U, Element>({from, call.a.column_stride, call.depth, rows}, units * U::kPerUnit,
                                 rows_at_once, packed);
    } else if constexpr (kWidens<U, Element>) {
      const int64_t width = call.depth + kWidenedGap;
      pack_rows<U, Element>({from, call.a.row_stride, rows, call.depth}, rows, width, packed);
      numbers = {packed, width, 1};
    } else {
      numbers = {from, call.a.row_stride, U::kPerUnit};
    }
    for (int64_t column = 0; column < call.columns; column += kPanel) {
      const Unit* panel = static_cast<const Unit*>(call.panels) + column * units;
      const int64_t columns = call.columns - column < kPanel ? call.columns - column : kPanel;
      for (int64_t k = 0; k < units; k += kDepthBlock) {
        const int64_t depth = units - k < kDepthBlock ? units - k : kDepthBlock;
        const Output<Element> out{sums,
                                  k == 0,
                                  k + depth == units,
                                  static_cast<Element*>(call.c) + row * call.c_stride + column,
                                  call.c_stride,
                                  columns};
        const Unit* block = panel + k * kPanel;  // the next one lies behind it
        const bool is_end = out.last && column + kPanel >= call.columns;
        const void* next = is_end ? call.panels : block + depth * kPanel;
        multiply_rows<U, Number, Element>(
            {numbers.data + k * numbers.unit_stride, numbers.row_stride, numbers.unit_stride}, block, depth,
            {static_cast<const char*>(next), prefetched}, out, rows);
      }
    }
  }
}

template <typename U, typename Element>
ProductKernels product_kernels() {
  return {panel_bytes<U, Element>, pack<U, Element>, takes<U, Element>, scratch_bytes<U, Element>,
          multiply<U, Element>};
}

}  // namespace

const MatmulBlocks& HYPERION_MATMUL_BLOCKS() {
#ifdef __AVX512BF16__
  using Bf16Units = Bf16Pairs;
#else
  using Bf16Units = SingleFloats;
#endif
  static const MatmulBlocks blocks = {product_kernels<SingleFloats, float>(),
                                      product_kernels<Bf16Units, Bf16>()};
  return blocks;
}

}  // namespace hyperion::kernels::cpu
