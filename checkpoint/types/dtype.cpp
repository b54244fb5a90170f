#include "checkpoint/types/dtype.h"

#include <array>

namespace hyperion::checkpoint {
namespace {

struct Entry {
  Dtype dtype;
  size_t bytes;
  std::string_view safetensors;  // empty: the format has no such type
};

constexpr std::array kTypes = {
    Entry{Dtype::kFloat32, 4, "F32"},     Entry{Dtype::kFloat64, 8, "F64"},
    Entry{Dtype::kFloat16, 2, "F16"},     Entry{Dtype::kBFloat16, 2, "BF16"},
    Entry{Dtype::kInt64, 8, "I64"},       Entry{Dtype::kInt32, 4, "I32"},
    Entry{Dtype::kInt16, 2, "I16"},       Entry{Dtype::kInt8, 1, "I8"},
    Entry{Dtype::kUInt8, 1, "U8"},        Entry{Dtype::kUInt16, 2, "U16"},
    Entry{Dtype::kUInt32, 4, "U32"},      Entry{Dtype::kUInt64, 8, "U64"},
    Entry{Dtype::kBool, 1, "BOOL"},       Entry{Dtype::kComplex64, 8, "C64"},
    Entry{Dtype::kComplex128, 16, ""},    Entry{Dtype::kFloat8E4M3FN, 1, "F8_E4M3"},
    Entry{Dtype::kFloat8E4M3FNUZ, 1, ""}, Entry{Dtype::kFloat8E5M2, 1, "F8_E5M2"},
    Entry{Dtype::kFloat8E5M2FNUZ, 1, ""}, Entry{Dtype::kFloat8E8M0FNU, 1, "F8_E8M0"},
};

const Entry& entry(Dtype dtype) {
  return kTypes[static_cast<size_t>(dtype)];
}

}  // namespace

size_t size_of(Dtype dtype) {
  return entry(dtype).bytes;
}
std::string_view safetensors_name(Dtype dtype) {
  return entry(dtype).safetensors;
}

std::optional<Dtype> dtype_from_safetensors(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const Entry& type : kTypes)
    if (type.safetensors == name) return type.dtype;
  return std::nullopt;
}

}  // namespace hyperion::checkpoint
