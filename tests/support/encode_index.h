// The .metadata file of an index that is in memory. (A save never has all of its index there.)
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/dcp/metadata.h"

namespace hyperion::test {

class TensorsOfIndex : public checkpoint::IndexTensors {
 public:
  explicit TensorsOfIndex(const checkpoint::CheckpointIndex& index) {
    for (const auto& [key, record] : index.tensors) {
      const auto path = index.paths.find(key);
      tensors_.push_back({key, record, path == index.paths.end() ? nullptr : &path->second});
    }
  }

  size_t size() const override { return tensors_.size(); }
  Tensor at(size_t number) const override {
    const auto& [key, record, path] = tensors_[number];
    return {key, record.dtype, record.shape, path};
  }
  void visit_chunks(size_t number,
                    const std::function<void(const checkpoint::Chunk& chunk)>& visit) override {
    for (const checkpoint::Chunk& chunk : tensors_[number].record.chunks) visit(chunk);
  }

 private:
  struct One {
    const std::string& key;
    const checkpoint::TensorRecord& record;
    const checkpoint::KeyPath* path;
  };
  std::vector<One> tensors_;
};

// Every chunk and object must have its location set.
inline std::string encode_index(const checkpoint::CheckpointIndex& index) {
  TensorsOfIndex tensors(index);
  std::string bytes;
  checkpoint::encode_metadata(tensors, index, [&](std::string_view piece) { bytes += piece; });
  return bytes;
}

inline checkpoint::CheckpointIndex decode_index(std::string bytes,
                                                const std::filesystem::path& folder = "step-7") {
  const checkpoint::IndexFile file{".metadata", std::move(bytes)};
  return checkpoint::decode_metadata(folder, {&file, 1});
}

}  // namespace hyperion::test
