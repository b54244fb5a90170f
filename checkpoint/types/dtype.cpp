#include "checkpoint/types/dtype.h"

#include <array>

namespace hyperion {
namespace {

struct Entry {
  Dtype dtype;
  size_t bytes;
  std::string_view torch;
  std::string_view safetensors;  // empty: the format has no such type
};

constexpr std::array kTypes = {
    Entry{Dtype::kFloat32, 4, "float32", "F32"},
    Entry{Dtype::kFloat64, 8, "float64", "F64"},
    Entry{Dtype::kFloat16, 2, "float16", "F16"},
    Entry{Dtype::kBFloat16, 2, "bfloat16", "BF16"},
    Entry{Dtype::kInt64, 8, "int64", "I64"},
    Entry{Dtype::kInt32, 4, "int32", "I32"},
    Entry{Dtype::kInt16, 2, "int16", "I16"},
    Entry{Dtype::kInt8, 1, "int8", "I8"},
    Entry{Dtype::kUInt8, 1, "uint8", "U8"},
    Entry{Dtype::kUInt16, 2, "uint16", "U16"},
    Entry{Dtype::kUInt32, 4, "uint32", "U32"},
    Entry{Dtype::kUInt64, 8, "uint64", "U64"},
    Entry{Dtype::kBool, 1, "bool", "BOOL"},
    Entry{Dtype::kComplex64, 8, "complex64", "C64"},
    Entry{Dtype::kComplex128, 16, "complex128", ""},
    Entry{Dtype::kFloat8E4M3FN, 1, "float8_e4m3fn", "F8_E4M3"},
    Entry{Dtype::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", ""},
    Entry{Dtype::kFloat8E5M2, 1, "float8_e5m2", "F8_E5M2"},
    Entry{Dtype::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", ""},
    Entry{Dtype::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "F8_E8M0"},
};

const Entry& entry(Dtype dtype) {
  return kTypes[static_cast<size_t>(dtype)];
}

}  // namespace

size_t size_of(Dtype dtype) {
  return entry(dtype).bytes;
}
std::string_view torch_name(Dtype dtype) {
  return entry(dtype).torch;
}
std::string_view safetensors_name(Dtype dtype) {
  return entry(dtype).safetensors;
}

std::optional<Dtype> dtype_from_torch(std::string_view name) {
  for (const Entry& type : kTypes)
    if (type.torch == name) return type.dtype;
  return std::nullopt;
}

std::optional<Dtype> dtype_from_safetensors(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const Entry& type : kTypes)
    if (type.safetensors == name) return type.dtype;
  return std::nullopt;
}

}  // namespace hyperion
