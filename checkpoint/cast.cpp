#include "checkpoint/cast.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace hyperion::checkpoint {
namespace {

struct BFloat16 {
  uint16_t bits;
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static BFloat16 of(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>((word >> 16) | 0x40)};
    return {static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16)};
  }
};

struct Float16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    // Denormals too: the exponent is rebased by an exact multiplication.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(rest << 13) * 0x1p112f));
  }
  static Float16 of(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    const auto sign = static_cast<uint16_t>(word >> 16 & 0x8000);
    const float magnitude = std::abs(value);
    if (std::isnan(value)) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (magnitude < 0x1p-14f)  // denormal: the sum rounds at the last bit
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3f000000))};
    const uint32_t rest = word & 0x7fffffff;
    return {static_cast<uint16_t>(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
  }
};

template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return To::of(static_cast<float>(value));
  }
}

template <typename From, typename To>
void run(const void* in, void* out, uint64_t count) {
  const auto* from = static_cast<const From*>(in);
  auto* to = static_cast<To*>(out);
  for (uint64_t i = 0; i < count; ++i) to[i] = convert<To>(from[i]);
}

// Calls use() with a value of the type.
template <typename Use>
void with_type(Dtype dtype, const Use& use) {
  switch (dtype) {
    case Dtype::kFloat32:
      return use(float{});
    case Dtype::kFloat64:
      return use(double{});
    case Dtype::kFloat16:
      return use(Float16{});
    default:
      return use(BFloat16{});
  }
}

bool is_float(Dtype dtype) {
  return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || dtype == Dtype::kFloat16 ||
         dtype == Dtype::kBFloat16;
}

}  // namespace

bool can_cast(Dtype from, Dtype to) {
  return is_float(from) && is_float(to);
}

void cast(Dtype from, const void* in, Dtype to, void* out, uint64_t count) {
  if (!can_cast(from, to)) throw_bug("no conversion from {} to {}", torch_name(from), torch_name(to));
  if (from == to) {
    std::memcpy(out, in, count * size_of(from));
    return;
  }
  with_type(from, [&]<typename From>(From) {
    with_type(to, [&]<typename To>(To) { run<From, To>(in, out, count); });
  });
}

}  // namespace hyperion::checkpoint
