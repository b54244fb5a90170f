#include "checkpoint/state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace hyperion::checkpoint {

Rows rows_of(int64_t rows, int shards, int shard) {
  const int64_t each = (rows + shards - 1) / shards;
  const int64_t begin = std::min(rows, shard * each);
  return {begin, std::min(rows, begin + each) - begin};
}

Rows TensorState::rows() const {
  return shape.empty() ? Rows{0, 1} : rows_of(shape.front(), placement.shards, placement.shard);
}

Dims TensorState::local_shape() const {
  Dims local = shape;
  if (!local.empty()) local.front() = rows().count;
  return local;
}

uint64_t TensorState::local_bytes() const {
  uint64_t bytes = size_of(dtype);
  for (const int64_t extent : local_shape()) bytes *= static_cast<uint64_t>(extent);
  return bytes;
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
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

}  // namespace hyperion::checkpoint
