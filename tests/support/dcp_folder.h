// A whole DCP folder in memory, made with the pieces of checkpoint/format: what the tests of those pieces
// read, change and write again.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/types/index.h"
#include "checkpoint/types/object.h"

namespace hyperion::test {

struct WholeTensor {
  checkpoint::Dtype dtype = checkpoint::Dtype::kFloat32;
  checkpoint::Dims shape;
  std::string bytes;  // row-major
};

struct DcpFolder {
  std::map<std::string, WholeTensor> tensors;
  std::map<std::string, checkpoint::Object> objects;
  std::map<std::string, checkpoint::KeyPath> paths;
};

// Reads everything, verifying every checksum.
DcpFolder read_dcp_folder(const std::filesystem::path& folder);

// Writes it with every tensor cut along its first dimension as torch.chunk would cut it, one file a shard.
void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& content, int shards);

}  // namespace hyperion::test
