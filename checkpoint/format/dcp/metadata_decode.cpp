#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/format/metadata_tiling.h"
#include "checkpoint/format/pickle/pickle_reader.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMaxKey = size_t{1} << 16;
constexpr size_t kMaxRank = 64;
// A pickle may refer to one value any number of times, so its content can be far larger than the file.
// Visiting a value costs 1, keeping it costs its bytes; the sum is limited to this, several times what
// torch's files need.
constexpr uint64_t kWorkPerByte = 16;
constexpr uint64_t kWorkOfSmallFile = uint64_t{4} << 20;

class MetadataReader {
 public:
  CheckpointIndex read(const std::filesystem::path& folder, std::span<const IndexFile> files) {
    CheckpointIndex merged;
    for (const IndexFile& file : files) {
      path_ = printable(folder / file.name);
      read_file(file.content);
      merge(std::move(index_), merged);
      index_ = {};
    }
    index_ = std::move(merged);
    if (files.size() > 1) {
      path_ = fmt::format("{} to {}", printable(folder / files.front().name),
                          printable(folder / files.back().name));
      for (const auto& [key, object] : index_.objects)
        if (index_.tensors.contains(key))
          fail("'{}' is both a tensor and an object: files of two saves are mixed", printable(key));
      for (auto& [key, tensor] : index_.tensors) remove_copies(tensor.chunks);
    }
    for (const auto& [key, tensor] : index_.tensors)
      check_tiling(fmt::format("{}: the tensor '{}'", path_, printable(key)), tensor);
    check_places();
    return std::move(index_);
  }

 private:
  // The location of one chunk or object.
  struct Entry {
    std::optional<Dims> offset;  // nullopt for an object
    Span where;
  };

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }

  void charge(uint64_t work) const {
    if (work > work_left_)
      fail(
          "what it describes is many times larger than the file, as of a file that was made to exhaust "
          "memory");
    work_left_ -= work;
  }

  // --- the files ---

  void read_file(const std::string& content) {
    work_left_ += kWorkPerByte * content.size();
    entries_.clear();
    const PickleTree tree = read_pickle(std::as_bytes(std::span(content)), path_);
    const PickleValue root = tree.root();
    if (!root.is_instance_of(PickleClass::kMetadata)) fail("it holds no torch Metadata object");
    const PickleValue state = state_of(root, "the Metadata object");
    storage_data(need(state, "storage_data", "the Metadata object"));
    const PickleValue entries = need(state, "state_dict_metadata", "the Metadata object");
    if (entries.kind() != PickleValue::Kind::kDict) fail("its state_dict_metadata is no dict");
    entries.for_each_item([&](PickleValue key, PickleValue value) { entry(text_of(key, "a key"), value); });
    if (const auto paths = find(state, "planner_data")) planner_data(*paths);
    if (const auto meta = find(state, "storage_meta");
        meta && meta->is_instance_of(PickleClass::kStorageMeta))
      if (const auto fields = meta->instance_state())
        if (const auto id = find(*fields, "save_id"); id && id->text())
          index_.save_id = text_of(*id, "save_id");
  }

  // Adds the content of the current file to `merged`, the content of the previous files.
  void merge(CheckpointIndex part, CheckpointIndex& merged) const {
    merged.tensors.merge(part.tensors);  // `part` keeps keys that `merged` already has
    for (auto& [key, tensor] : part.tensors) {
      TensorRecord& known = merged.tensors.at(key);
      if (tensor.dtype != known.dtype || tensor.shape != known.shape)
        fail("the tensor '{}' is {}, in the files of the ranks before {}: files of two saves are mixed",
             printable(key), describe_tensor(tensor.dtype, tensor.shape),
             describe_tensor(known.dtype, known.shape));
      std::ranges::move(tensor.chunks, std::back_inserter(known.chunks));
    }
    merged.objects.merge(part.objects);
    merged.paths.merge(part.paths);
    if (merged.save_id.empty()) merged.save_id = std::move(part.save_id);
  }
  // If several ranks wrote a chunk, the first rank's is kept.
  static void remove_copies(std::vector<Chunk>& chunks) {
    const auto box = [](const Chunk& chunk) { return std::tie(chunk.offset, chunk.shape); };
    std::ranges::stable_sort(chunks, {}, box);
    const auto same = [&](const Chunk& a, const Chunk& b) { return box(a) == box(b); };
    chunks.erase(std::unique(chunks.begin(), chunks.end(), same), chunks.end());
  }

  // --- parts every class is made of ---

  std::optional<PickleValue> find(PickleValue state, std::string_view field) const {
    charge(state.size());
    return state.find(field);
  }
  PickleValue state_of(PickleValue instance, std::string_view what) const {
    const auto state = instance.instance_state();
    if (!state || state->kind() != PickleValue::Kind::kDict) fail("{} has no fields", what);
    return *state;
  }
  PickleValue need(PickleValue state, std::string_view field, std::string_view what) const {
    const auto value = find(state, field);
    if (!value) fail("{} lacks the field '{}'", what, field);
    return *value;
  }
  std::string text_of(PickleValue value, std::string_view what) const {
    const auto text = value.text();
    if (!text || text->size() > kMaxKey) fail("{} is no text of at most {} bytes", what, kMaxKey);
    charge(sizeof(std::string) + text->size());
    return std::string(*text);
  }
  Dims dims_of(PickleValue value, std::string_view what) const {
    if (value.kind() != PickleValue::Kind::kTuple || value.size() > kMaxRank)
      fail("{} is no tuple of at most {} whole numbers", what, kMaxRank);
    charge(2 * sizeof(int64_t) * value.size());
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
      charge(sizeof(Entry) + key->size());
      Entry entry;
      if (const auto offset = find(fields, "offset"); offset && !offset->is_none())
        entry.offset = dims_of(*offset, "the offset of a MetadataIndex");
      entry.where = span_of(*key, state_of(info, "a _StorageInfo"));
      entries_[*key].push_back(std::move(entry));
    });
    for (auto& [key, entries] : entries_) {
      std::ranges::sort(entries, {}, &Entry::offset);
      if (std::ranges::adjacent_find(entries, {}, &Entry::offset) != entries.end())
        fail("'{}' has two places for one chunk", printable(key));
    }
  }
  Span span_of(std::string_view key, PickleValue fields) const {
    if (const auto transforms = find(fields, "transform_descriptors"); transforms && !transforms->is_none()) {
      std::string names;
      charge(transforms->size() * 128);
      transforms->for_each([&](PickleValue name) { names += " " + printable(name.text().value_or("?")); });
      if (transforms->kind() != PickleValue::Kind::kList || !names.empty())
        fail("the bytes of '{}' went through the transforms{}, which are not supported; save without them",
             printable(key), names);
    }
    const auto file = need(fields, "relative_path", "a _StorageInfo").text();
    if (!file) fail("the relative_path of '{}' is no text", printable(key));
    charge(file->size());
    if (!is_plain_name(*file))
      fail(
          "the relative_path of '{}' is '{}', which is no plain name of a file in the checkpoint's own "
          "folder",
          printable(key), printable(*file));
    const uint64_t offset =
        position_of(need(fields, "offset", "a _StorageInfo"), "the offset of a _StorageInfo");
    const uint64_t length =
        position_of(need(fields, "length", "a _StorageInfo"), "the length of a _StorageInfo");
    return {std::string(*file), offset, length};  // both below 2^63: their sum fits
  }

  // The location of the object `key`, or of the chunk of `key` at `offset`; null if the file has none.
  const Span* find_place(const std::string& key, const std::optional<Dims>& offset) const {
    charge(key.size());
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    const auto entry = std::ranges::lower_bound(found->second, offset, {}, &Entry::offset);
    return entry != found->second.end() && entry->offset == offset ? &entry->where : nullptr;
  }

  // --- state_dict_metadata: key -> tensor or object ---

  void entry(const std::string& key, PickleValue value) {
    if (index_.tensors.contains(key) || index_.objects.contains(key))
      fail("the key '{}' occurs twice", printable(key));
    if (value.is_instance_of(PickleClass::kBytesStorageMetadata)) {
      const Span* where = find_place(key, std::nullopt);
      if (!where) fail("the object '{}' has no place in any file", printable(key));
      index_.objects.emplace(key, ObjectRecord{*where});
    } else if (value.is_instance_of(PickleClass::kTensorStorageMetadata)) {
      index_.tensors.emplace(key, tensor(key, value));
    } else {
      fail("'{}' is neither a tensor nor an object", printable(key));
    }
  }
  TensorRecord tensor(const std::string& key, PickleValue value) const {
    const std::string who = fmt::format("the tensor '{}'", printable(key));
    const PickleValue fields = state_of(value, who);
    charge(sizeof(TensorRecord) + key.size());
    TensorRecord tensor;
    tensor.dtype = dtype_of(need(fields, "properties", who), who);
    tensor.shape = dims_of(need(fields, "size", who), who + ": its size");
    const PickleValue chunks = need(fields, "chunks", who);
    if (chunks.kind() != PickleValue::Kind::kList) fail("{}: its chunks are no list", who);
    charge(sizeof(Chunk) * chunks.size());
    tensor.chunks.reserve(chunks.size());
    chunks.for_each([&](PickleValue chunk) {
      if (!chunk.is_instance_of(PickleClass::kChunkStorageMetadata))
        fail("{}: a chunk is of another class", who);
      const PickleValue box = state_of(chunk, "a chunk");
      tensor.chunks.push_back({dims_of(need(box, "offsets", "a chunk"), "a chunk's offsets"),
                               dims_of(need(box, "sizes", "a chunk"), "a chunk's sizes"),
                               {}});
    });
    for (Chunk& chunk : tensor.chunks) {
      const Span* where = find_place(key, chunk.offset);
      if (!where) fail("{}: the chunk at [{}] has no place in any file", who, fmt::join(chunk.offset, ", "));
      chunk.where = *where;
    }
    return tensor;
  }
  Dtype dtype_of(PickleValue properties, const std::string& who) const {
    const auto state = properties.instance_state();
    if (state) charge(state->size());
    const auto parts = state ? state->tuple() : std::nullopt;
    if (!properties.is_instance_of(PickleClass::kTensorProperties) || !parts || parts->empty())
      fail("{}: its properties have another form than torch writes", who);
    const auto dtype = parts->front().global();
    if (!dtype || dtype->which != PickleClass::kDtype) fail("{}: its properties begin with no dtype", who);
    return dtype->dtype;
  }

  // Checks that every location holds the bytes of one chunk or object only, and at least as many as the
  // chunk has elements: reading an entire checkpoint then costs no more than reading its files.
  void check_places() const {
    std::vector<std::pair<const Span*, const std::string*>> places;
    for (const auto& [key, record] : index_.objects) places.emplace_back(&record.where, &key);
    for (const auto& [key, record] : index_.tensors)
      for (const Chunk& chunk : record.chunks) {
        places.emplace_back(&chunk.where, &key);
        const auto elements = static_cast<uint64_t>(element_count(chunk.shape).value());
        if (elements > chunk.where.length / size_of(record.dtype))
          fail("the chunk of '{}' at [{}] of shape [{}] has more elements than fit into its {} bytes of {}",
               printable(key), fmt::join(chunk.offset, ", "), fmt::join(chunk.shape, ", "),
               chunk.where.length, printable(chunk.where.file));
      }
    std::ranges::sort(places, {}, [](const auto& place) {
      return std::tie(place.first->file, place.first->offset, place.first->length);
    });
    for (size_t i = 1; i < places.size(); ++i) {
      const auto& [before, key_before] = places[i - 1];
      const auto& [span, key] = places[i];
      if (before->file == span->file && before->offset + before->length > span->offset)
        fail("the bytes of '{}' and of '{}' overlap at byte {} of {}", printable(*key_before),
             printable(*key), span->offset, printable(span->file));
    }
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
        charge(sizeof(KeyPath::value_type));
        if (const auto position = part.integer())
          path.emplace_back(*position);
        else
          path.emplace_back(text_of(part, "a part of a path in planner_data"));
      });
      index_.paths.insert_or_assign(text_of(key, "a key of planner_data"), std::move(path));
    });
  }

  std::string path_;                               // path of the current file
  mutable uint64_t work_left_ = kWorkOfSmallFile;  // for all files together
  std::unordered_map<std::string_view, std::vector<Entry>> entries_;
  CheckpointIndex index_;  // index of the current file
};

}  // namespace

CheckpointIndex decode_metadata(const std::filesystem::path& folder, std::span<const IndexFile> files) {
  return MetadataReader().read(folder, files);
}

}  // namespace hyperion::checkpoint
