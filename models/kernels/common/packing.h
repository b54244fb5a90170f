// Packing of tensors into the layouts of CPU products, for files that are compiled once per instruction
// set.
#pragma once

#include "models/kernels/common/vectors.h"

namespace hyperion::kernels::cpu {
namespace {

// The bits of a bf16 number.
struct Bf16 {
  uint16_t bits;
};

HYPERION_INLINE float to_float(float x) {
  return x;
}
HYPERION_INLINE float to_float(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
HYPERION_INLINE void set(float& to, float x) {
  to = x;
}
HYPERION_INLINE void set(Bf16& to, float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
}

// Says whether packing widens bf16 numbers to fp32.
template <typename U, typename Element>
constexpr bool kWidens = U::kPerUnit == 1 && sizeof(Element) == 2;

// The numbers of a unit in memory: fp32, or the bits of bf16.
template <typename U, typename Element>
struct Packed {
  using Number = float;
  static HYPERION_INLINE float of(Element x) { return to_float(x); }
};
#ifdef __AVX512BF16__
template <typename Element>
struct Packed<Bf16Pairs, Element> {
  using Number = uint16_t;
  static HYPERION_INLINE uint16_t of(Bf16 x) { return x.bits; }
};
#endif

// A matrix of `count` rows of `size` numbers, `stride` apart.
template <typename Element>
struct Rows {
  const Element* data;
  int64_t stride, count, size;
};

// Copies rows, padded with zeros to [height, width].
template <typename U, typename Element>
void pack_rows(const Rows<Element>& rows, int64_t height, int64_t width, typename U::Unit* units) {
  using Number = typename Packed<U, Element>::Number;
  auto* to = reinterpret_cast<Number*>(units);
  for (int64_t r = 0; r < height; ++r, to += width) {
    const int64_t size = r < rows.count ? rows.size : 0;
    for (int64_t i = 0; i < size; ++i) to[i] = Packed<U, Element>::of(rows.data[r * rows.stride + i]);
    for (int64_t i = size; i < width; ++i) to[i] = 0;
  }
}

// Copies rows like pack_rows(), but the numbers of a unit come from neighbouring rows: [height /
// kPerUnit][width] units. width: a multiple of 16.
template <typename U, typename Element>
void pack_row_pairs(const Rows<Element>& rows, int64_t height, int64_t width, typename U::Unit* units) {
  if constexpr (U::kPerUnit == 1) {
    pack_rows<U, Element>(rows, height, width, units);
  } else {
#ifdef __AVX512BF16__
    constexpr int64_t kAtOnce = 32;
    for (int64_t r = 0; r < height; r += 2, units += width) {
      const auto numbers = [&](int64_t row, int64_t column) {
        const int64_t left = row < rows.count ? rows.size - column : 0;
        const Element* from = rows.data + row * rows.stride + column;
        if (left >= kAtOnce) return _mm512_loadu_si512(from);
        return _mm512_maskz_loadu_epi16(left > 0 ? ~uint32_t{0} >> (kAtOnce - left) : 0, from);
      };
      for (int64_t i = 0; i < width; i += kAtOnce) {
        const RowPairs both = pairs_of_rows(numbers(r, i), numbers(r + 1, i));
        _mm512_storeu_si512(units + i, both.first);
        if (i + kAtOnce / 2 < width) _mm512_storeu_si512(units + i + kAtOnce / 2, both.last);
      }
    }
#endif
  }
}

#ifdef __AVX512F__
// Loads up to 16 units of a row.
template <typename U, typename Element>
HYPERION_INLINE __m512i units_of_row(const Element* row, __mmask16 used) {
  if constexpr (kWidens<U, Element>)
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(used, row)), 16);
  else
    return _mm512_maskz_loadu_epi32(used, row);
}

// Transposes 16 rows of up to 16 units, `stride` apart, to `units` rows of 16 lanes, `lanes` units apart.
template <typename U, typename Element>
HYPERION_INLINE void transpose_units(const Element* rows, int64_t stride, int64_t units, void* to,
                                     int64_t lanes) {
  constexpr int kSide = 16;
  const auto used = static_cast<__mmask16>((1 << units) - 1);
  __m512i a[kSide], b[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) {
    a[r] = units_of_row<U>(rows + r * stride, used);
  }
  // In each quarter of a vector four rows become four columns: column c of group g is in a[4 g + c].
#pragma GCC unroll 4
  for (int r = 0; r < kSide; r += 4) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
    b[r + 2] = _mm512_unpacklo_epi32(a[r + 2], a[r + 3]);
    b[r + 3] = _mm512_unpackhi_epi32(a[r + 2], a[r + 3]);
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
  // Then the quarters: 0x88 takes the even ones of two vectors, 0xdd the odd ones.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88),
                  even_high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88),
                  odd_low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd),
                  odd_high = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    const auto put = [&](int unit, __m512i lane) {
      if (unit < units) _mm512_storeu_si512(static_cast<uint32_t*>(to) + unit * lanes, lane);
    };
    put(c, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    put(4 + c, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    put(8 + c, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    put(12 + c, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}
#endif

// Transposes rows to lanes: [width / kPerUnit][lanes] units, where the numbers of a unit are neighbours in a
// row.
template <typename U, typename Element>
void pack_lanes(const Rows<Element>& rows, int64_t lanes, int64_t width, typename U::Unit* units) {
  using Number = typename Packed<U, Element>::Number;
  constexpr int64_t kTogether = U::kPerUnit;
#ifdef __AVX512F__
  constexpr int64_t kAtOnce = 16;  // units, and lanes
  if (rows.count == lanes && rows.size == width && lanes % kAtOnce == 0) {
    const int64_t count = width / kTogether;
    for (int64_t lane = 0; lane < lanes; lane += kAtOnce)
      for (int64_t unit = 0; unit < count; unit += kAtOnce)
        transpose_units<U>(rows.data + lane * rows.stride + unit * kTogether, rows.stride,
                           count - unit < kAtOnce ? count - unit : kAtOnce, units + unit * lanes + lane,
                           lanes);
    return;
  }
#endif
  auto* to = reinterpret_cast<Number*>(units);
  for (int64_t r = 0; r < lanes; ++r) {
    const int64_t size = r < rows.count ? rows.size : 0;
    const Element* row = rows.data + r * rows.stride;
    for (int64_t i = 0; i < width; i += kTogether)
      for (int64_t j = 0; j < kTogether; ++j)
        to[(i / kTogether * lanes + r) * kTogether + j] =
            i + j < size ? Packed<U, Element>::of(row[i + j]) : Number(0);
  }
}

// Writes to = from * factor, rounded.
template <typename Element>
void put_row(const float* from, float factor, int64_t size, Element* to) {
  for (int64_t i = 0; i < size; ++i) set(to[i], from[i] * factor);
}

template <typename Element>
float dot(const Element* a, const Element* b, int64_t size) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8)
    for (int64_t j = 0; j < 8; ++j) sums[j] += to_float(a[i + j]) * to_float(b[i + j]);
  for (; i < size; ++i) sums[0] += to_float(a[i]) * to_float(b[i]);
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace
}  // namespace hyperion::kernels::cpu
