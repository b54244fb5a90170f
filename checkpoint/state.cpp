#include "checkpoint/state.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/storage/block_buffer.h"

namespace hyperion::checkpoint {

uint64_t TensorState::local_bytes() const {
  return placement.is_local ? static_cast<uint64_t>(box().numel()) * size_of(dtype) : 0;
}

std::vector<std::string> StateComponent::required_objects() {
  std::vector<std::string> keys;
  for (const ObjectState& object : objects()) keys.push_back(object.key);
  return keys;
}

std::string component_of(const std::string& key) {
  const std::string first = key.substr(0, key.find('.'));
  const bool named = first.size() < key.size() && std::ranges::count(kStateComponents, first) > 0;
  return named ? first : std::string(kModelComponent);
}

void MemoryMover::to_host(void* host, const TensorState& from, uint64_t offset, uint64_t bytes) {
  std::memcpy(host, static_cast<const std::byte*>(from.data) + offset, bytes);
}

void MemoryMover::from_host(const TensorState& to, uint64_t offset, const void* host, uint64_t bytes) {
  std::memcpy(static_cast<std::byte*>(to.data) + offset, host, bytes);
}

std::shared_ptr<std::byte> MemoryMover::allocate(uint64_t bytes) {
  auto buffer = std::make_shared<BlockBuffer>(std::max<uint64_t>(bytes, 1));
  return {buffer, buffer->data()};
}

}  // namespace hyperion::checkpoint
