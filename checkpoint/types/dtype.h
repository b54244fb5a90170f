// Element types that checkpoints hold, with their names in torch and in safetensors.
#pragma once

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
// As torch.<name>.
constexpr auto choices(Dtype) {
  return choice_list<Dtype>({
      {Dtype::kFloat32, "float32"},
      {Dtype::kFloat64, "float64"},
      {Dtype::kFloat16, "float16"},
      {Dtype::kBFloat16, "bfloat16"},
      {Dtype::kInt64, "int64"},
      {Dtype::kInt32, "int32"},
      {Dtype::kInt16, "int16"},
      {Dtype::kInt8, "int8"},
      {Dtype::kUInt8, "uint8"},
      {Dtype::kUInt16, "uint16"},
      {Dtype::kUInt32, "uint32"},
      {Dtype::kUInt64, "uint64"},
      {Dtype::kBool, "bool"},
      {Dtype::kComplex64, "complex64"},
      {Dtype::kComplex128, "complex128"},
      {Dtype::kFloat8E4M3FN, "float8_e4m3fn"},
      {Dtype::kFloat8E4M3FNUZ, "float8_e4m3fnuz"},
      {Dtype::kFloat8E5M2, "float8_e5m2"},
      {Dtype::kFloat8E5M2FNUZ, "float8_e5m2fnuz"},
      {Dtype::kFloat8E8M0FNU, "float8_e8m0fnu"},
  });
}

constexpr std::string_view torch_name(Dtype dtype) {
  return text_of(dtype);
}

size_t size_of(Dtype dtype);  // bytes of one element

// "BF16"; empty for the types safetensors does not have.
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> dtype_from_safetensors(std::string_view name);

}  // namespace hyperion::checkpoint
