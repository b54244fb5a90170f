#include "checkpoint/storage/block_buffer.h"

#include <array>
#include <mutex>
#include <utility>

namespace hyperion::checkpoint {
namespace {

struct UnusedBlocks {
  std::mutex mutex;
  std::array<std::unique_ptr<BlockBuffer>, 2> blocks;  // the number that a ShardWriter uses
};

UnusedBlocks& unused_blocks() {
  static UnusedBlocks& unused =
      *new UnusedBlocks;  // never destroyed: a thread may write until the process ends
  return unused;
}

}  // namespace

FileBlock::FileBlock() {
  {
    UnusedBlocks& unused = unused_blocks();
    const std::lock_guard lock(unused.mutex);
    for (auto& block : unused.blocks)
      if (!buffer_) buffer_ = std::move(block);
  }
  if (!buffer_) buffer_ = std::make_unique<BlockBuffer>(kBlockBytes);
}

FileBlock::~FileBlock() {
  UnusedBlocks& unused = unused_blocks();
  const std::lock_guard lock(unused.mutex);
  for (auto& block : unused.blocks)
    if (!block) block = std::move(buffer_);
}

}  // namespace hyperion::checkpoint
