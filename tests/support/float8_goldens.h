// What torchao computes, as tests/interop recorded it in tests/goldens/float8.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "base/files.h"

namespace hyperion::test {

inline const std::filesystem::path kFloat8Goldens = HYPERION_SOURCE_DIR "/tests/goldens/float8";

using GoldenTensors = std::map<std::string, at::Tensor>;

// Group -> key -> tensor of FILE.safetensors, whose names are GROUP/KEY.
inline std::map<std::string, GoldenTensors> read_goldens(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"BF16", at::kBFloat16}, {"F32", at::kFloat}, {"U8", at::kByte}, {"I32", at::kInt}};
  std::string file = read_file(kFloat8Goldens / (name + ".safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  std::map<std::string, GoldenTensors> groups;
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") continue;
    const std::vector<int64_t> shape = value.at("shape");
    const auto begin = value.at("data_offsets").at(0).get<int64_t>();
    const auto end = value.at("data_offsets").at(1).get<int64_t>();
    char* data = file.data() + 8 + length + begin;
    const at::Tensor bytes =
        at::from_blob(data, {end - begin}, at::TensorOptions(at::kByte)).clone();  // aligned
    const size_t slash = key.find('/');
    groups[key.substr(0, slash)][key.substr(slash + 1)] =
        bytes.view(kTypes.at(value.at("dtype"))).view(shape);
  }
  return groups;
}

// Equal numbers (zeros of either sign), NaN where NaN, same dtype and shape.
inline bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.eq(b) | (a.isnan() & b.isnan())).all().item<bool>();
}

}  // namespace hyperion::test
