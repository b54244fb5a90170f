// Element types that checkpoints hold, with their names in torch and in safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hyperion {

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

size_t size_of(Dtype dtype);  // bytes of one element

std::string_view torch_name(Dtype dtype);  // "bfloat16", as torch.<name>
std::optional<Dtype> dtype_from_torch(std::string_view name);

// "BF16"; empty for the types safetensors does not have.
std::string_view safetensors_name(Dtype dtype);
std::optional<Dtype> dtype_from_safetensors(std::string_view name);

}  // namespace hyperion
