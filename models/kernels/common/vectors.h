// Vectors of floats in the width of the instruction set for which the including file is compiled, and the two
// kinds of units that products multiply. Only for files that are compiled once per instruction set:
// everything is local to them.
#pragma once

#include <cstdint>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace hyperion::kernels::cpu {
namespace {

#define HYPERION_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

using Floats = float __attribute__((vector_size(kLanes * 4)));
using Ints = int32_t __attribute__((vector_size(kLanes * 4)));

HYPERION_INLINE Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
HYPERION_INLINE void store(float* to, Floats value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
HYPERION_INLINE Floats all(float value) {
  return value - Floats{};  // x - 0 is x for every x
}
HYPERION_INLINE Ints load_ints(const int32_t* from) {
  Ints value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
// Returns b if one of them is NaN.
HYPERION_INLINE Floats larger(Floats a, Floats b) {
  return a > b ? a : b;
}

constexpr float kInfinity = __builtin_inff();

// Returns 2^x = 2^round(x) * 2^r with |r| <= 1/2. 2^r is a polynomial that is exact at 0, interpolated at
// Chebyshev nodes. The largest relative error is 7e-6 for degree 4 and 5e-9 for degree 6, plus the rounding
// of fp32, 1e-7. A result below 2^-126 may be any smaller number, and is 0 below 2^-150. A result above 2^128
// is infinity. NaN stays NaN.
template <int kDegree>
HYPERION_INLINE Floats exp2_of(Floats x) {
  static_assert(kDegree == 4 || kDegree == 6);
#if defined(__AVX512F__)
  const Floats bounded = _mm512_max_ps(all(-151.0F), x);  // the second where one of them is NaN
  const Floats whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats bounded = x < -127.0F ? all(-127.0F) : (x > 128.0F ? all(128.0F) : x);
  const Floats shifted = bounded + 12582912.0F;  // 1.5 * 2^23: the last bit of the sum counts whole numbers
  const Floats whole = shifted - 12582912.0F;
#endif
  const Floats r = bounded - whole;
  Floats p;
  if constexpr (kDegree == 4) {
    p = r * 9.656710289e-3F + 5.583828295e-2F;
    p = p * r + 2.402253010e-1F;
    p = p * r + 6.931367339e-1F;
  } else {
    p = r * 1.545316294e-4F + 1.339086336e-3F;
    p = p * r + 9.618082557e-3F;
    p = p * r + 5.550357114e-2F;
    p = p * r + 2.402265076e-1F;
    p = p * r + 6.931471880e-1F;
  }
  p = p * r + 1.0F;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, whole);
#else
  const Floats scaled = reinterpret_cast<Floats>(  // adds to the exponent of p
      reinterpret_cast<Ints>(p) + (reinterpret_cast<Ints>(shifted) << 23));
  return x == x ? scaled : x;
#endif
}

// A unit is the operand that one lane multiplies with one instruction.

// A unit of one fp32 number.
struct SingleFloats {
  using Unit = float;
  using Units = Floats;
  static constexpr int64_t kPerUnit = 1;
  static constexpr int kDegree = 6;  // for exp2_of()

  static HYPERION_INLINE Units load_units(const Unit* from) { return load(from); }
  static HYPERION_INLINE Units all_lanes(Unit unit) { return all(unit); }
  static HYPERION_INLINE Floats multiply_add(Units a, Units b, Floats sum) { return a * b + sum; }
};

#ifdef __AVX512F__
// Rounds 16 numbers to nearest, ties to even; NaN stays NaN.
HYPERION_INLINE __m256i to_bf16(Floats x) {
  const __m512i bits = _mm512_castps_si512(x),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1)),
                rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7FC0)));
}
#endif

#ifdef __AVX512BF16__
// A unit of two neighbouring bf16 numbers, which one instruction multiplies and adds to an fp32 sum.
struct Bf16Pairs {
  using Unit = uint32_t;
  using Units = __m512i;
  static constexpr int64_t kPerUnit = 2;
  static constexpr int kDegree = 4;  // the result is rounded to 8 bits

  static HYPERION_INLINE Units load_units(const Unit* from) { return _mm512_loadu_si512(from); }
  static HYPERION_INLINE Units all_lanes(Unit unit) { return _mm512_set1_epi32(static_cast<int>(unit)); }
  static HYPERION_INLINE Floats multiply_add(Units a, Units b, Floats sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

// Rounds 32 numbers, `low` first.
HYPERION_INLINE __m512i to_bf16(Floats low, Floats high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// Interleaves the numbers of two rows to pairs: of the first 16 columns, and of the last 16.
struct RowPairs {
  __m512i first, last;
};
HYPERION_INLINE RowPairs pairs_of_rows(__m512i even, __m512i odd) {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i last = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  return {_mm512_permutex2var_epi16(even, first, odd), _mm512_permutex2var_epi16(even, last, odd)};
}
#endif

}  // namespace
}  // namespace hyperion::kernels::cpu
