#include <unordered_map>

#include "base/error.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/format/pickle/pickle_writer.h"

namespace hyperion::checkpoint {
namespace {

// Names that are written once and referred to by memo slot afterwards.
class Names {
 public:
  explicit Names(PickleWriter& writer) : writer_(writer) {}

  void text(const std::string& value) {
    const auto [slot, fresh] = texts_.try_emplace(value, 0);
    if (!fresh) return writer_.get(slot->second);
    writer_.text(value);
    slot->second = writer_.put();
  }
  void global(const char* module, const char* name) {
    const auto [slot, fresh] = globals_.try_emplace(name, 0);
    if (!fresh) return writer_.get(slot->second);
    writer_.global(module, name);
    slot->second = writer_.put();
  }

 private:
  PickleWriter& writer_;
  std::unordered_map<std::string, uint32_t> texts_;
  std::unordered_map<std::string_view, uint32_t> globals_;
};

class MetadataWriter {
 public:
  explicit MetadataWriter(const CheckpointIndex& index) : index_(index) {
    size_t chunks = index.objects.size();
    for (const auto& [key, tensor] : index.tensors) chunks += tensor.chunks.size();
    writer_.reserve(4096 + 128 * chunks + 256 * (index.tensors.size() + index.objects.size()));
    tensor_slots_.reserve(index.tensors.size());
    object_slots_.reserve(index.objects.size());
  }

  std::string write() {
    begin(kMetadata, "Metadata");
    field("state_dict_metadata");
    state_dict_metadata();
    field("planner_data");
    planner_data();
    field("storage_data");
    storage_data();
    field("storage_meta");
    storage_meta();
    field("version");
    writer_.text("1.0.0");
    end();
    return writer_.finish();
  }

 private:
  static constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata";
  static constexpr const char* kFilesystem = "torch.distributed.checkpoint.filesystem";

  void field(const char* name) { names_.text(name); }
  void instance(const char* module, const char* name) {
    names_.global(module, name);
    writer_.op(PickleOp::kEmptyTuple);
    writer_.op(PickleOp::kNewObject);
  }
  // A dataclass: begin, fields, end.
  void begin(const char* module, const char* name) {
    instance(module, name);
    begin_dict();
  }
  void end() {
    end_dict();
    writer_.op(PickleOp::kBuild);
  }
  void begin_dict() {
    writer_.op(PickleOp::kEmptyDict);
    writer_.op(PickleOp::kMark);
  }
  void end_dict() { writer_.op(PickleOp::kSetItems); }

  void size(const Dims& dims) {
    names_.global("torch", "Size");
    if (PickleWriter::tuple_needs_mark(dims.size())) writer_.op(PickleOp::kMark);
    for (const int64_t extent : dims) writer_.integer(extent);
    writer_.tuple(dims.size());
    writer_.tuple(1);
    writer_.op(PickleOp::kReduce);
  }

  // torch reads only the dtype; the other four are what a plain tensor has.
  void properties(Dtype dtype) {
    instance(kMetadata, "TensorProperties");
    writer_.op(PickleOp::kMark);
    names_.global("torch", torch_name(dtype).data());
    names_.global("torch.serialization", "_get_layout");
    field("torch.strided");
    writer_.tuple(1);
    writer_.op(PickleOp::kReduce);
    writer_.boolean(false);
    names_.global(kMetadata, "_MEM_FORMAT_ENCODING");
    writer_.integer(0);
    writer_.tuple(1);
    writer_.op(PickleOp::kReduce);
    writer_.boolean(false);
    writer_.op(PickleOp::kTuple);
    writer_.op(PickleOp::kBuild);
  }

  void state_dict_metadata() {
    begin_dict();
    for (const auto& [key, tensor] : index_.tensors) {
      writer_.text(key);
      tensor_slots_.push_back(writer_.put());
      begin(kMetadata, "TensorStorageMetadata");
      field("properties");
      properties(tensor.dtype);
      field("size");
      size(tensor.shape);
      field("chunks");
      writer_.op(PickleOp::kEmptyList);
      writer_.op(PickleOp::kMark);
      for (const Chunk& chunk : tensor.chunks) {
        begin(kMetadata, "ChunkStorageMetadata");
        field("offsets");
        size(chunk.offset);
        field("sizes");
        size(chunk.shape);
        end();
      }
      writer_.op(PickleOp::kAppends);
      end();
    }
    for (const auto& [key, object] : index_.objects) {
      writer_.text(key);
      object_slots_.push_back(writer_.put());
      instance(kMetadata, "BytesStorageMetadata");
    }
    end_dict();
  }

  void path(uint32_t key_slot, const std::string& key) {
    writer_.get(key_slot);
    const auto found = index_.paths.find(key);
    const KeyPath flat = {key};
    const KeyPath& path = found == index_.paths.end() ? flat : found->second;
    if (PickleWriter::tuple_needs_mark(path.size())) writer_.op(PickleOp::kMark);
    for (const auto& part : path) {
      if (const int64_t* position = std::get_if<int64_t>(&part))
        writer_.integer(*position);
      else if (std::get<std::string>(part) == key)
        writer_.get(key_slot);
      else
        names_.text(std::get<std::string>(part));
    }
    writer_.tuple(path.size());
  }
  void planner_data() {
    begin_dict();
    size_t next = 0;
    for (const auto& [key, tensor] : index_.tensors) path(tensor_slots_[next++], key);
    next = 0;
    for (const auto& [key, object] : index_.objects) path(object_slots_[next++], key);
    end_dict();
  }

  void entry(uint32_t key_slot, const Chunk* chunk, size_t position, const Span& where) {
    begin(kMetadata, "MetadataIndex");
    field("fqn");
    writer_.get(key_slot);
    field("index");
    if (chunk) {
      writer_.integer(static_cast<int64_t>(position));
      field("offset");
      size(chunk->offset);
    } else {
      writer_.none();
    }
    end();
    begin(kFilesystem, "_StorageInfo");
    field("relative_path");
    names_.text(where.file);
    field("offset");
    writer_.integer(static_cast<int64_t>(where.offset));
    field("length");
    writer_.integer(static_cast<int64_t>(where.length));
    end();
  }
  void storage_data() {
    begin_dict();
    size_t next = 0;
    for (const auto& [key, tensor] : index_.tensors) {
      const uint32_t slot = tensor_slots_[next++];
      for (size_t i = 0; i < tensor.chunks.size(); ++i)
        entry(slot, &tensor.chunks[i], i, tensor.chunks[i].where);
    }
    next = 0;
    for (const auto& [key, object] : index_.objects) entry(object_slots_[next++], nullptr, 0, object.where);
    end_dict();
  }

  // checkpoint_id is ".", which stays true when the folder is moved.
  void storage_meta() {
    begin(kMetadata, "StorageMeta");
    field("checkpoint_id");
    writer_.text(".");
    field("save_id");
    writer_.text(index_.save_id);
    field("load_id");
    writer_.none();
    field("modules");
    writer_.op(PickleOp::kEmptyList);
    end();
  }

  const CheckpointIndex& index_;
  PickleWriter writer_;
  Names names_{writer_};
  std::vector<uint32_t> tensor_slots_, object_slots_;
};

}  // namespace

std::string encode_metadata(const CheckpointIndex& index) {
  if (index.layout != CheckpointIndex::Layout::kArchives)
    throw_bug("an index of bare bytes cannot be written as .metadata, whose entries are archives");
  return MetadataWriter(index).write();
}

}  // namespace hyperion::checkpoint
