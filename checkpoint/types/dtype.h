// Element types of checkpoints, with their names in torch and in safetensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/choice.h"

namespace hyperion::checkpoint {

enum class Dtype : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
};
struct DtypeTraits {
  Dtype dtype;
  std::string_view torch;                 // torch.<name>
  size_t bytes;                           // size of one element
  std::string_view safetensors, storage;  // storage: torch.<class>; each empty if there is none
};
inline constexpr std::array kDtypes = {
    DtypeTraits{Dtype::kFloat32, "float32", 4, "F32", "FloatStorage"},
    DtypeTraits{Dtype::kFloat64, "float64", 8, "F64", "DoubleStorage"},
    DtypeTraits{Dtype::kFloat16, "float16", 2, "F16", "HalfStorage"},
    DtypeTraits{Dtype::kBFloat16, "bfloat16", 2, "BF16", "BFloat16Storage"},
    DtypeTraits{Dtype::kInt64, "int64", 8, "I64", "LongStorage"},
    DtypeTraits{Dtype::kInt32, "int32", 4, "I32", "IntStorage"},
    DtypeTraits{Dtype::kInt16, "int16", 2, "I16", "ShortStorage"},
    DtypeTraits{Dtype::kInt8, "int8", 1, "I8", "CharStorage"},
    DtypeTraits{Dtype::kUInt8, "uint8", 1, "U8", "ByteStorage"},
    DtypeTraits{Dtype::kUInt16, "uint16", 2, "U16", ""},
    DtypeTraits{Dtype::kUInt32, "uint32", 4, "U32", ""},
    DtypeTraits{Dtype::kUInt64, "uint64", 8, "U64", ""},
    DtypeTraits{Dtype::kBool, "bool", 1, "BOOL", "BoolStorage"},
    DtypeTraits{Dtype::kComplex64, "complex64", 8, "C64", "ComplexFloatStorage"},
    DtypeTraits{Dtype::kComplex128, "complex128", 16, "", "ComplexDoubleStorage"},
    DtypeTraits{Dtype::kFloat8E4M3FN, "float8_e4m3fn", 1, "F8_E4M3", ""},
    DtypeTraits{Dtype::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1, "", ""},
    DtypeTraits{Dtype::kFloat8E5M2, "float8_e5m2", 1, "F8_E5M2", ""},
    DtypeTraits{Dtype::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1, "", ""},
    DtypeTraits{Dtype::kFloat8E8M0FNU, "float8_e8m0fnu", 1, "F8_E8M0", ""},
};
constexpr const DtypeTraits& traits_of(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}

constexpr auto choices(Dtype) {
  std::array<Choice<Dtype>, kDtypes.size()> list{};
  for (size_t i = 0; i < list.size(); ++i) list[i] = {kDtypes[i].dtype, kDtypes[i].torch};
  return list;
}

constexpr std::string_view torch_name(Dtype dtype) {
  return traits_of(dtype).torch;
}
constexpr size_t size_of(Dtype dtype) {
  return traits_of(dtype).bytes;
}

// The type with this name: find_dtype("BF16", &DtypeTraits::safetensors). nullopt for "".
constexpr std::optional<Dtype> find_dtype(std::string_view name, std::string_view DtypeTraits::*naming) {
  for (const DtypeTraits& traits : kDtypes)
    if (!name.empty() && traits.*naming == name) return traits.dtype;
  return std::nullopt;
}

}  // namespace hyperion::checkpoint
