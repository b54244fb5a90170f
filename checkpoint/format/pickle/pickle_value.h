// The content of a pickle, as data. The classes and functions that a pickle names are members of a fixed
// list and are never looked up or called: an instance is a record of (class, arguments, state).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

inline constexpr uint8_t kMaxPickleDepth = 64;  // levels of nested values

// All classes and functions that a checkpoint's pickles may name.
enum class PickleClass : uint8_t {
  kMetadata,
  kTensorStorageMetadata,
  kTensorProperties,
  kChunkStorageMetadata,
  kBytesStorageMetadata,
  kMetadataIndex,
  kStorageMeta,
  kStorageInfo,
  kMemoryFormat,
  kSize,
  kGetLayout,
  kPath,
  kOrderedDict,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kDtype,           // torch.<dtype>
  kStorage,         // torch.<Kind>Storage, whose elements have one dtype
  kUntypedStorage,  // a storage of bytes
  kEncode,          // _codecs.encode: how protocol 2 writes bytes
  kBytes,
  kSet,
  kGetAttribute,  // getattr, with which Python 3.11.2 (Debian 12) writes a member of an enum
};

struct PickleGlobal {
  PickleClass which = PickleClass::kMetadata;
  Dtype dtype = Dtype::kFloat32;  // for kDtype and kStorage
};

// The member of PickleClass with this name, if there is one.
std::optional<PickleGlobal> find_pickle_global(std::string_view module, std::string_view name);

class PickleTree;

// A handle to one value of a tree. It is valid as long as the tree and its input.
class PickleValue {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kDouble,
    kText,
    kBytes,
    kList,
    kTuple,
    kSet,
    kDict,
    kGlobal,
    kInstance,
    kPersistentId
  };

  PickleValue(const PickleTree& tree, uint32_t ref) : tree_(&tree), ref_(ref) {}

  Kind kind() const;
  bool is_none() const { return kind() == Kind::kNone; }
  // Each is empty unless the value is of that kind.
  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;
  std::optional<std::string_view> text() const;  // valid UTF-8
  std::optional<std::string_view> bytes() const;
  std::optional<PickleGlobal> global() const;
  std::optional<PickleGlobal> instance() const;       // the class of an instance
  std::optional<PickleValue> instance_args() const;   // a tuple
  std::optional<PickleValue> instance_state() const;  // empty also for an instance without state
  std::optional<PickleValue> persistent_id() const;   // the id's value
  std::optional<std::vector<PickleValue>> tuple() const;
  bool is_instance_of(PickleClass which) const;

  size_t size() const;  // number of values in a list, tuple or set; of keys and values in a dict
  // Calls f(PickleValue) for each value of a list, tuple or set; nothing for other kinds.
  template <typename F>
  void for_each(F f) const;
  // Calls f(key, value) for each item of a dict; nothing for other kinds.
  template <typename F>
  void for_each_item(F f) const;
  // The value under a text key of a dict (the last, as in Python); empty for other kinds.
  std::optional<PickleValue> find(std::string_view key) const;

 private:
  const struct PickleNode* node() const;
  const PickleTree* tree_;
  uint32_t ref_;
};

// A node takes 16 bytes per value. Small integers take none: they are stored in the reference itself.
struct PickleNode {
  struct Links {
    uint32_t first, second;
  };
  explicit PickleNode(PickleValue::Kind kind = PickleValue::Kind::kNone, PickleGlobal global = {})
      : kind(kind), global(global) {}
  PickleValue::Kind kind;
  uint8_t depth = 0;
  PickleGlobal global;
  uint32_t count = 0;  // bytes of text, references of a container
  union {
    int64_t integer = 0;
    double number;
    // text, bytes: start in the input. tuple: start in links(). list, set, dict: first and last segment in
    // links(). instance: arguments and state. persistent id: its value.
    Links at;
  };
};
static_assert(sizeof(PickleNode) == 16);

// Owns all values of one pickle. References between values are numbers, so that cycles neither leak nor
// recurse.
class PickleTree {
 public:
  static constexpr uint32_t kAbsent = std::numeric_limits<int32_t>::max();
  static constexpr uint32_t kSmallInt = 0x80000000;  // set: the other 31 bits are an integer

  PickleValue root() const { return {*this, root_}; }
  const std::string& name() const { return name_; }  // of the file, for messages

 private:
  friend class PickleMachine;
  friend class PickleValue;
  std::string name_;
  std::string_view input_;
  std::vector<PickleNode> nodes_;
  std::vector<uint32_t> links_ = {0};  // a segment of a container: [next segment or 0, count, references...]
  uint32_t root_ = 0;
};

template <typename F>
void PickleValue::for_each(F f) const {
  const PickleNode* node = this->node();
  const std::vector<uint32_t>& links = tree_->links_;
  if (kind() == Kind::kTuple) {
    for (uint32_t i = 0; i < node->count; ++i) f(PickleValue(*tree_, links[node->at.first + i]));
  } else if (kind() == Kind::kList || kind() == Kind::kSet) {
    for (uint32_t segment = node->at.first; segment != 0; segment = links[segment])
      for (uint32_t i = 0; i < links[segment + 1]; ++i) f(PickleValue(*tree_, links[segment + 2 + i]));
  }
}

template <typename F>
void PickleValue::for_each_item(F f) const {
  if (kind() != Kind::kDict) return;
  const std::vector<uint32_t>& links = tree_->links_;
  for (uint32_t segment = node()->at.first; segment != 0; segment = links[segment])
    for (uint32_t i = 0; i + 1 < links[segment + 1]; i += 2)
      f(PickleValue(*tree_, links[segment + 2 + i]), PickleValue(*tree_, links[segment + 3 + i]));
}

}  // namespace hyperion::checkpoint
