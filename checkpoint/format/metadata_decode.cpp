#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/format/metadata.h"
#include "checkpoint/format/metadata_tiling.h"
#include "checkpoint/format/pickle_reader.h"
#include "checkpoint/object.h"

namespace hyperion {
namespace {

constexpr size_t kMostKey = size_t{1} << 16;
constexpr size_t kMostRank = 64;

class MetadataReader {
 public:
  MetadataReader(std::span<const std::byte> bytes, const std::string& path)
      : path_(path), tree_(read_pickle(bytes, path)) {}

  CheckpointIndex read() {
    const PickleValue root = tree_.root();
    if (!root.is_instance_of(PickleClass::kMetadata)) fail("it holds no torch Metadata object");
    const PickleValue state = state_of(root, "the Metadata object");
    storage_data(need(state, "storage_data", "the Metadata object"));
    const PickleValue entries = need(state, "state_dict_metadata", "the Metadata object");
    if (entries.kind() != PickleValue::Kind::kDict) fail("its state_dict_metadata is no dict");
    entries.for_each_item([&](PickleValue key, PickleValue value) { entry(text_of(key, "a key"), value); });
    if (const auto paths = state.find("planner_data")) planner_data(*paths);
    if (const auto meta = state.find("storage_meta"); meta && meta->is_instance_of(PickleClass::kStorageMeta))
      if (const auto fields = meta->instance_state())
        if (const auto id = fields->find("save_id"); id && id->text())
          index_.save_id = text_of(*id, "save_id");
    return std::move(index_);
  }

 private:
  // Where the bytes of one chunk or object lie.
  struct Entry {
    bool is_object = false;
    Dims offset;
    Span where;
  };

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }

  // --- parts every class is made of ---

  PickleValue state_of(PickleValue instance, std::string_view what) const {
    const auto state = instance.instance_state();
    if (!state || state->kind() != PickleValue::Kind::kDict) fail("{} has no fields", what);
    return *state;
  }
  PickleValue need(PickleValue state, std::string_view field, std::string_view what) const {
    const auto value = state.find(field);
    if (!value) fail("{} lacks the field '{}'", what, field);
    return *value;
  }
  std::string text_of(PickleValue value, std::string_view what) const {
    const auto text = value.text();
    if (!text || text->size() > kMostKey) fail("{} is no text of at most {} bytes", what, kMostKey);
    return std::string(*text);
  }
  Dims dims_of(PickleValue value, std::string_view what) const {
    if (value.kind() != PickleValue::Kind::kTuple || value.size() > kMostRank)
      fail("{} is no tuple of at most {} whole numbers", what, kMostRank);
    Dims dims;
    dims.reserve(value.size());
    value.for_each([&](PickleValue extent) {
      const auto number = extent.integer();
      if (!number || *number < 0) fail("{} has a part that is no whole number from 0 on", what);
      dims.push_back(*number);
    });
    return dims;
  }
  uint64_t position_of(PickleValue value, std::string_view what) const {
    const auto number = value.integer();
    if (!number || *number < 0) fail("{} is no whole number from 0 on", what);
    return static_cast<uint64_t>(*number);
  }

  // --- storage_data: (key, offset) -> place ---

  void storage_data(PickleValue places) {
    if (places.kind() != PickleValue::Kind::kDict) fail("its storage_data is no dict");
    places.for_each_item([&](PickleValue index, PickleValue info) {
      if (!index.is_instance_of(PickleClass::kMetadataIndex) ||
          !info.is_instance_of(PickleClass::kStorageInfo))
        fail("its storage_data has an item that is not MetadataIndex -> _StorageInfo");
      const PickleValue fields = state_of(index, "a MetadataIndex");
      const auto key = need(fields, "fqn", "a MetadataIndex").text();
      if (!key) fail("the fqn of a MetadataIndex is no text");
      const auto offset = fields.find("offset");
      Entry entry;
      entry.is_object = !offset || offset->is_none();
      if (!entry.is_object) entry.offset = dims_of(*offset, "the offset of a MetadataIndex");
      entry.where = span_of(*key, state_of(info, "a _StorageInfo"));
      entries_[*key].push_back(std::move(entry));
    });
    const auto order = [](const Entry& entry) { return std::tie(entry.is_object, entry.offset); };
    for (auto& [key, entries] : entries_) {
      std::ranges::sort(entries, {}, order);
      if (std::ranges::adjacent_find(entries, {}, order) != entries.end())
        fail("'{}' has two places for one chunk", printable(key));
    }
  }
  Span span_of(std::string_view key, PickleValue fields) const {
    if (const auto transforms = fields.find("transform_descriptors"); transforms && !transforms->is_none()) {
      std::string names;
      transforms->for_each([&](PickleValue name) { names += " " + printable(name.text().value_or("?")); });
      if (transforms->kind() != PickleValue::Kind::kList || !names.empty())
        fail("the bytes of '{}' went through the transforms{}, which are not supported; save without them",
             printable(key), names);
    }
    const auto file = need(fields, "relative_path", "a _StorageInfo").text();
    if (!file) fail("the relative_path of '{}' is no text", printable(key));
    if (!is_plain_name(*file))
      check_file_name(fmt::format("{}: the relative_path of '{}'", path_, printable(key)), *file);
    const uint64_t offset =
        position_of(need(fields, "offset", "a _StorageInfo"), "the offset of a _StorageInfo");
    const uint64_t length =
        position_of(need(fields, "length", "a _StorageInfo"), "the length of a _StorageInfo");
    return {std::string(*file), offset, length};  // both below 2^63: their sum fits
  }
  // Quick test for what nearly all names look like, so that no message is built for them.
  static bool is_plain_name(std::string_view file) {
    return file.starts_with("__") && file.size() < 32 &&
           file.find_first_of(std::string_view("/\0", 2)) == file.npos;
  }

  const Entry* find_entry(const std::string& key, const Chunk* chunk) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    const std::vector<Entry>& entries = found->second;
    if (!chunk) return entries.back().is_object ? &entries.back() : nullptr;
    const auto place = std::ranges::lower_bound(
        entries, std::tuple<bool, const Dims&>(false, chunk->offset), {},
        [](const Entry& entry) { return std::tuple<bool, const Dims&>(entry.is_object, entry.offset); });
    return place != entries.end() && !place->is_object && place->offset == chunk->offset ? &*place : nullptr;
  }

  // --- state_dict_metadata: key -> tensor or object ---

  void entry(const std::string& key, PickleValue value) {
    if (index_.tensors.contains(key) || index_.objects.contains(key))
      fail("the key '{}' occurs twice", printable(key));
    if (value.is_instance_of(PickleClass::kBytesStorageMetadata)) {
      const Entry* entry = find_entry(key, nullptr);
      if (!entry) fail("the object '{}' has no place in any file", printable(key));
      index_.objects.emplace(key, ObjectRecord{entry->where});
    } else if (value.is_instance_of(PickleClass::kTensorStorageMetadata)) {
      index_.tensors.emplace(key, tensor(key, value));
    } else {
      fail("'{}' is neither a tensor nor an object", printable(key));
    }
  }
  TensorRecord tensor(const std::string& key, PickleValue value) const {
    const std::string who = fmt::format("the tensor '{}'", printable(key));
    const PickleValue fields = state_of(value, who);
    TensorRecord tensor;
    tensor.dtype = dtype_of(need(fields, "properties", who), who);
    tensor.shape = dims_of(need(fields, "size", who), who + ": its size");
    const PickleValue chunks = need(fields, "chunks", who);
    if (chunks.kind() != PickleValue::Kind::kList) fail("{}: its chunks are no list", who);
    tensor.chunks.reserve(chunks.size());
    chunks.for_each([&](PickleValue chunk) {
      if (!chunk.is_instance_of(PickleClass::kChunkStorageMetadata))
        fail("{}: a chunk is of another class", who);
      const PickleValue box = state_of(chunk, "a chunk");
      tensor.chunks.push_back({dims_of(need(box, "offsets", "a chunk"), "a chunk's offsets"),
                               dims_of(need(box, "sizes", "a chunk"), "a chunk's sizes"),
                               {}});
    });
    check_tiling(fmt::format("{}: {}", path_, who), tensor);
    for (Chunk& chunk : tensor.chunks) {
      const Entry* entry = find_entry(key, &chunk);
      if (!entry) fail("{}: the chunk at [{}] has no place in any file", who, fmt::join(chunk.offset, ", "));
      chunk.where = entry->where;
    }
    return tensor;
  }
  Dtype dtype_of(PickleValue properties, const std::string& who) const {
    const auto state = properties.instance_state();
    const auto parts = state ? state->tuple() : std::nullopt;
    if (!properties.is_instance_of(PickleClass::kTensorProperties) || !parts || parts->empty())
      fail("{}: its properties have another form than torch writes", who);
    const auto dtype = parts->front().global();
    if (!dtype || dtype->which != PickleClass::kDtype) fail("{}: its properties begin with no dtype", who);
    return dtype->dtype;
  }

  // --- planner_data: key -> path in the nested state ---

  void planner_data(PickleValue paths) {
    if (paths.is_none()) return;
    if (paths.kind() != PickleValue::Kind::kDict) fail("its planner_data is no dict");
    paths.for_each_item([&](PickleValue key, PickleValue parts) {
      if (parts.kind() != PickleValue::Kind::kTuple || parts.size() == 0)
        fail("a path in planner_data is no tuple");
      KeyPath path;
      parts.for_each([&](PickleValue part) {
        if (const auto position = part.integer())
          path.emplace_back(*position);
        else
          path.emplace_back(text_of(part, "a part of a path in planner_data"));
      });
      index_.paths.insert_or_assign(text_of(key, "a key of planner_data"), std::move(path));
    });
  }

  const std::string& path_;
  PickleTree tree_;
  std::unordered_map<std::string_view, std::vector<Entry>> entries_;
  CheckpointIndex index_;
};

}  // namespace

void check_file_name(const std::string& who, std::string_view file) {
  if (file.empty() || file == "." || file == ".." || file.size() > 255 ||
      file.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos)
    throw_data("{} is '{}', which is no plain name of a file in the checkpoint's own folder", who,
               printable(file));
}

CheckpointIndex decode_metadata(std::span<const std::byte> bytes, const std::string& path) {
  return MetadataReader(bytes, path).read();
}

}  // namespace hyperion
