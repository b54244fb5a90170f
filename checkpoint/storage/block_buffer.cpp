#include "checkpoint/storage/block_buffer.h"

#include <mutex>
#include <utility>
#include <vector>

namespace hyperion::checkpoint {
namespace {

constexpr size_t kKept = 2;  // what a ShardWriter uses

struct KeptBlocks {
  std::mutex mutex;
  std::vector<std::unique_ptr<BlockBuffer>> blocks;
};

KeptBlocks& kept_blocks() {
  static KeptBlocks& kept = *[] {
    auto* blocks = new KeptBlocks;  // until the process ends: a thread may write a file until then
    blocks->blocks.reserve(kKept);
    return blocks;
  }();
  return kept;
}

}  // namespace

FileBlock::FileBlock() {
  {
    KeptBlocks& kept = kept_blocks();
    const std::lock_guard lock(kept.mutex);
    if (!kept.blocks.empty()) {
      buffer_ = std::move(kept.blocks.back());
      kept.blocks.pop_back();
    }
  }
  if (!buffer_) buffer_ = std::make_unique<BlockBuffer>(kBlockBytes);
}

FileBlock::~FileBlock() {
  KeptBlocks& kept = kept_blocks();
  const std::lock_guard lock(kept.mutex);
  if (kept.blocks.size() < kKept) kept.blocks.push_back(std::move(buffer_));
}

}  // namespace hyperion::checkpoint
