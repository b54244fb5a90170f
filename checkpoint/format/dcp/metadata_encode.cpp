#include <unordered_map>

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
  MetadataWriter(IndexTensors& tensors, const CheckpointIndex& rest,
                 const std::function<void(std::string_view piece)>& take)
      : tensors_(tensors), rest_(rest), take_(take) {
    tensor_slots_.reserve(tensors.size());
    object_slots_.reserve(rest.objects.size());
  }

  void write() {
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
    take_(writer_.finish());
  }

 private:
  static constexpr const char* kMetadata = "torch.distributed.checkpoint.metadata";
  static constexpr const char* kFilesystem = "torch.distributed.checkpoint.filesystem";
  static constexpr size_t kPiece = size_t{1} << 20;

  void take_full_piece() {
    if (writer_.size() >= kPiece) writer_.take(take_);
  }

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
    for (size_t number = 0; number < tensors_.size(); ++number) {
      const IndexTensors::Tensor tensor = tensors_.at(number);
      writer_.text(tensor.key);
      tensor_slots_.push_back(writer_.put());
      begin(kMetadata, "TensorStorageMetadata");
      field("properties");
      properties(tensor.dtype);
      field("size");
      size(tensor.shape);
      field("chunks");
      writer_.op(PickleOp::kEmptyList);
      writer_.op(PickleOp::kMark);
      tensors_.visit_chunks(number, [&](const Chunk& chunk) {
        begin(kMetadata, "ChunkStorageMetadata");
        field("offsets");
        size(chunk.offset);
        field("sizes");
        size(chunk.shape);
        end();
        take_full_piece();
      });
      writer_.op(PickleOp::kAppends);
      end();
    }
    for (const auto& [key, object] : rest_.objects) {
      writer_.text(key);
      object_slots_.push_back(writer_.put());
      instance(kMetadata, "BytesStorageMetadata");
    }
    end_dict();
  }

  void path(uint32_t key_slot, const std::string& key, const KeyPath* known) {
    writer_.get(key_slot);
    const KeyPath flat = {key};
    const KeyPath& path = known == nullptr ? flat : *known;
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
    for (size_t number = 0; number < tensors_.size(); ++number) {
      const IndexTensors::Tensor tensor = tensors_.at(number);
      path(tensor_slots_[number], tensor.key, tensor.path);
    }
    size_t next = 0;
    for (const auto& [key, object] : rest_.objects) {
      const auto found = rest_.paths.find(key);
      path(object_slots_[next++], key, found == rest_.paths.end() ? nullptr : &found->second);
    }
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
    for (size_t number = 0; number < tensors_.size(); ++number) {
      size_t position = 0;
      tensors_.visit_chunks(number, [&](const Chunk& chunk) {
        entry(tensor_slots_[number], &chunk, position++, chunk.where);
        take_full_piece();
      });
    }
    size_t next = 0;
    for (const auto& [key, object] : rest_.objects) entry(object_slots_[next++], nullptr, 0, object.where);
    end_dict();
  }

  // checkpoint_id is ".", which stays true when the folder is moved.
  void storage_meta() {
    begin(kMetadata, "StorageMeta");
    field("checkpoint_id");
    writer_.text(".");
    field("save_id");
    writer_.text(rest_.save_id);
    field("load_id");
    writer_.none();
    field("modules");
    writer_.op(PickleOp::kEmptyList);
    end();
  }

  IndexTensors& tensors_;
  const CheckpointIndex& rest_;
  const std::function<void(std::string_view piece)>& take_;
  PickleWriter writer_;
  Names names_{writer_};
  std::vector<uint32_t> tensor_slots_, object_slots_;
};

}  // namespace

void encode_metadata(IndexTensors& tensors, const CheckpointIndex& rest,
                     const std::function<void(std::string_view piece)>& take) {
  MetadataWriter(tensors, rest, take).write();
}

}  // namespace hyperion::checkpoint
