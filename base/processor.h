// Instruction sets of the processor beyond the compiler's baseline. Only x86-64 has any; other processors
// run plain code that the compiler vectorizes. No other file checks the processor, except kernels compiled
// once per instruction set (models/kernels/common/vectors.h).
#pragma once

#ifdef __x86_64__
#include <cpuid.h>
#define HYPERION_X86_64  // and so the kernels for AVX2 and AVX-512 are linked
#endif

// Compiles a function for AVX-512, AVX2 and any x86-64; the loader chooses. On other processors the
// baseline has vectors; sanitizers must not see the calls that load-time selection makes too early.
#if defined(HYPERION_X86_64) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HYPERION_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HYPERION_VECTORISED
#endif

namespace hyperion::processor {

#ifdef HYPERION_X86_64
constexpr bool kX86 = true;
inline bool has_avx2() {  // with FMA and BMI2
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
inline bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
// Returns whether pairs of bf16 numbers are multiplied faster than fp32 numbers. An Intel Xeon core (Emerald
// Rapids) was measured at 83 GFLOP/s in pairs and at 162 in fp32.
inline bool has_fast_bf16_pairs() {
  return has_avx512_bf16() && __builtin_cpu_is("intel") == 0;
}
inline bool has_amx_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1U << 24)) != 0;
}
#else
constexpr bool kX86 = false;
inline bool has_avx2() {
  return false;
}
inline bool has_avx512() {
  return false;
}
inline bool has_avx512_bf16() {
  return false;
}
inline bool has_fast_bf16_pairs() {
  return false;
}
inline bool has_amx_tiles() {
  return false;
}
#endif

// Yields the core for a moment, in a loop that waits for another thread.
inline void relax() {
#if defined(HYPERION_X86_64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // some tens of cycles, as x86-64's pause; a yield does nothing on most cores
#endif
}

}  // namespace hyperion::processor
