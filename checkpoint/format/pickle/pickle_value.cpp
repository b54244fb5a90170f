#include "checkpoint/format/pickle/pickle_value.h"

#include <array>

namespace hyperion::checkpoint {
namespace {

struct KnownGlobal {
  std::string_view module, name;
  PickleClass which;
};

constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
constexpr std::array kKnownGlobals = {
    KnownGlobal{kMetadataModule, "Metadata", PickleClass::kMetadata},
    KnownGlobal{kMetadataModule, "TensorStorageMetadata", PickleClass::kTensorStorageMetadata},
    KnownGlobal{kMetadataModule, "TensorProperties", PickleClass::kTensorProperties},
    KnownGlobal{kMetadataModule, "ChunkStorageMetadata", PickleClass::kChunkStorageMetadata},
    KnownGlobal{kMetadataModule, "BytesStorageMetadata", PickleClass::kBytesStorageMetadata},
    KnownGlobal{kMetadataModule, "MetadataIndex", PickleClass::kMetadataIndex},
    KnownGlobal{kMetadataModule, "StorageMeta", PickleClass::kStorageMeta},
    KnownGlobal{kMetadataModule, "_MEM_FORMAT_ENCODING", PickleClass::kMemoryFormat},
    KnownGlobal{"torch.distributed.checkpoint.filesystem", "_StorageInfo", PickleClass::kStorageInfo},
    KnownGlobal{"torch", "Size", PickleClass::kSize},
    KnownGlobal{"torch.serialization", "_get_layout", PickleClass::kGetLayout},
    KnownGlobal{"pathlib", "PosixPath", PickleClass::kPath},
    KnownGlobal{"pathlib", "PurePosixPath", PickleClass::kPath},
    KnownGlobal{"pathlib", "WindowsPath", PickleClass::kPath},
    KnownGlobal{"pathlib", "PureWindowsPath", PickleClass::kPath},
    KnownGlobal{"collections", "OrderedDict", PickleClass::kOrderedDict},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v2", PickleClass::kRebuildTensorV2},
    KnownGlobal{"torch._utils", "_rebuild_tensor_v3", PickleClass::kRebuildTensorV3},
    KnownGlobal{"torch.storage", "UntypedStorage", PickleClass::kUntypedStorage},
    KnownGlobal{"_codecs", "encode", PickleClass::kEncode},
    KnownGlobal{"builtins", "bytes", PickleClass::kBytes},
    KnownGlobal{"builtins", "set", PickleClass::kSet},
    KnownGlobal{"builtins", "frozenset", PickleClass::kSet},
    KnownGlobal{"builtins", "getattr", PickleClass::kGetAttribute},
};

}  // namespace

std::optional<PickleGlobal> find_pickle_global(std::string_view module, std::string_view name) {
  // Two modules have another name in other versions of Python.
  if (module == "__builtin__") module = "builtins";
  if (module == "pathlib._local") module = "pathlib";
  for (const KnownGlobal& known : kKnownGlobals)
    if (known.name == name && known.module == module) return PickleGlobal{known.which, Dtype::kFloat32};
  if (module != "torch") return std::nullopt;
  if (const auto dtype = find_dtype(name, &DtypeTraits::torch))
    return PickleGlobal{PickleClass::kDtype, *dtype};
  if (const auto dtype = find_dtype(name, &DtypeTraits::storage))
    return PickleGlobal{PickleClass::kStorage, *dtype};
  return std::nullopt;
}

const PickleNode* PickleValue::node() const {
  return (ref_ & PickleTree::kSmallInt) ? nullptr : &tree_->nodes_[ref_];
}

PickleValue::Kind PickleValue::kind() const {
  const PickleNode* node = this->node();
  return node ? node->kind : Kind::kInt;
}

std::optional<int64_t> PickleValue::integer() const {
  const PickleNode* node = this->node();
  if (!node) return static_cast<int32_t>(ref_ << 1) >> 1;
  return node->kind == Kind::kInt ? std::optional(node->integer) : std::nullopt;
}

std::optional<bool> PickleValue::boolean() const {
  return kind() == Kind::kBool ? std::optional(node()->integer != 0) : std::nullopt;
}

std::optional<double> PickleValue::number() const {
  return kind() == Kind::kDouble ? std::optional(node()->number) : std::nullopt;
}

std::optional<std::string_view> PickleValue::text() const {
  if (kind() != Kind::kText) return std::nullopt;
  return tree_->input_.substr(node()->at.first, node()->count);
}

std::optional<std::string_view> PickleValue::bytes() const {
  if (kind() != Kind::kBytes) return std::nullopt;
  return tree_->input_.substr(node()->at.first, node()->count);
}

std::optional<PickleGlobal> PickleValue::global() const {
  return kind() == Kind::kGlobal ? std::optional(node()->global) : std::nullopt;
}

std::optional<PickleGlobal> PickleValue::instance() const {
  return kind() == Kind::kInstance ? std::optional(node()->global) : std::nullopt;
}

bool PickleValue::is_instance_of(PickleClass which) const {
  return kind() == Kind::kInstance && node()->global.which == which;
}

std::optional<PickleValue> PickleValue::instance_args() const {
  if (kind() != Kind::kInstance) return std::nullopt;
  return PickleValue(*tree_, node()->at.first);
}

std::optional<PickleValue> PickleValue::instance_state() const {
  if (kind() != Kind::kInstance || node()->at.second == PickleTree::kAbsent) return std::nullopt;
  return PickleValue(*tree_, node()->at.second);
}

std::optional<PickleValue> PickleValue::persistent_id() const {
  if (kind() != Kind::kPersistentId) return std::nullopt;
  return PickleValue(*tree_, node()->at.first);
}

std::optional<std::vector<PickleValue>> PickleValue::tuple() const {
  if (kind() != Kind::kTuple) return std::nullopt;
  std::vector<PickleValue> items;
  items.reserve(node()->count);
  for_each([&](PickleValue item) { items.push_back(item); });
  return items;
}

size_t PickleValue::size() const {
  const PickleNode* node = this->node();
  return node && kind() >= Kind::kList && kind() <= Kind::kDict ? node->count : 0;
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  std::optional<PickleValue> found;
  for_each_item([&](PickleValue name, PickleValue value) {
    if (name.text() == key) found = value;
  });
  return found;
}

}  // namespace hyperion::checkpoint
