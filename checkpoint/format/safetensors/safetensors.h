// Reads the headers of safetensors files, written by Hugging Face or by torch's Hugging Face storage
// writer; tensor bytes are not read. The format: u64 header length, JSON header, data without gaps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/types/byte_source.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

struct SafetensorsHeader {
  struct Tensor {
    Dtype dtype = Dtype::kFloat32;
    Dims shape;
    uint64_t offset = 0, bytes = 0;  // position in the file, and size
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the limit of Hugging Face's own reader
constexpr const char* kSafetensorsFile = "model.safetensors";
constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

// Throws Error(kBadData) naming the file unless every rule holds: the header's length fits, it is strict
// JSON (base/json.h), dtypes are known, sizes match the shapes, and the tensors fill the data part without
// holes or overlaps.
SafetensorsHeader read_safetensors_header(ByteSource& file);

// Reads the index of a model's folder or of one file. As in transformers, a folder is read from
// model.safetensors, else through model.safetensors.index.json (checked against the files), else, as in
// torch, from every *.safetensors file in it, whose shards become one tensor each. The spans' files are in
// the folder, or in the folder of `path` if that is a file. Links are followed, because Hugging Face's
// cache consists of them. Throws Error(kBadData).
CheckpointIndex read_safetensors(const std::filesystem::path& path);

}  // namespace hyperion::checkpoint
