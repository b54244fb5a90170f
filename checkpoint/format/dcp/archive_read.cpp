#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/metadata_tiling.h"
#include "checkpoint/format/pickle/pickle_object.h"
#include "checkpoint/format/pickle/pickle_reader.h"
#include "checkpoint/format/zip/zip_slice.h"

namespace hyperion::checkpoint {
namespace {

constexpr uint64_t kMaxTensorPickle = 1 << 16;
constexpr uint64_t kMaxObjectPickle = uint64_t{1} << 30;

// Caches both ends of an archive, which hold everything but the elements: two reads instead of twenty.
class EdgeCache : public ByteSource {
 public:
  explicit EdgeCache(ByteSource& source) : source_(source), size_(source.size()) {
    const uint64_t edge = size_ <= 2 * kEdge ? size_ : kEdge;
    head_ = source.read_text(0, edge);
    if (edge < size_) tail_ = source.read_text(size_ - edge, edge);
  }
  const std::string& name() const override { return source_.name(); }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, void* out, uint64_t bytes) override {
    require_inside(offset, bytes);
    const uint64_t tail_at = size_ - tail_.size();
    if (bytes == 0) return;
    if (offset + bytes <= head_.size())
      std::memcpy(out, head_.data() + offset, bytes);
    else if (offset >= tail_at)
      std::memcpy(out, tail_.data() + (offset - tail_at), bytes);
    else
      source_.read(offset, out, bytes);
  }

 private:
  static constexpr uint64_t kEdge = 2 << 10;
  ByteSource& source_;
  uint64_t size_;
  std::string head_, tail_;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The required and the optional records of a torch.save archive.
std::string read_pickle_record(ByteSource& archive, const ZipSlice& zip, uint64_t max_bytes) {
  if (zip.find("constants.pkl"))
    throw_data("{}: it holds a TorchScript program, which is refused", archive.name());
  const ZipRecord* version = zip.find("version");
  if (!version || version->data_bytes > 16) throw_data("{}: its archive has no version", archive.name());
  const std::string text = read_record(archive, *version);
  int number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || number < 1 || number > 10)
    throw_data("{}: its archive is of version '{}', expected 1 to 10", archive.name(), printable(text));
  if (const ZipRecord* order = zip.find("byteorder")) {
    const std::string value = order->data_bytes <= 16 ? read_record(archive, *order) : "(too long)";
    if (value != "little")
      throw_data("{}: its numbers are of byte order '{}'; only 'little' is supported", archive.name(),
                 printable(value));
  }
  const ZipRecord* pickle = zip.find("data.pkl");
  if (!pickle || pickle->data_bytes > max_bytes)
    throw_data("{}: its archive has no data.pkl of at most {} bytes", archive.name(), max_bytes);
  return read_record(archive, *pickle);
}

// The arguments of torch._utils._rebuild_tensor_v2 and _v3.
class TensorPickle {
 public:
  TensorPickle(const std::string& file, const PickleTree& tree) : file_(file) {
    const PickleValue root = tree.root();
    const bool v3 = root.is_instance_of(PickleClass::kRebuildTensorV3);
    if (!v3 && !root.is_instance_of(PickleClass::kRebuildTensorV2))
      fail("it holds something else than one tensor");
    const std::vector<PickleValue> args = *root.instance_args()->tuple();
    const size_t required = v3 ? 7 : 6;
    if (root.instance_state() || args.size() < required || args.size() > required + 1)
      fail("its tensor has {} arguments", args.size());
    if (args.size() > required && !args.back().is_none() &&
        (args.back().kind() != PickleValue::Kind::kDict || args.back().size() > 0))
      fail("its tensor carries flags, which are not supported");
    storage(args[0]);
    if (v3) {
      const auto dtype = args[6].global();
      if (!dtype || dtype->which != PickleClass::kDtype || !untyped_) fail("its tensor has no element type");
      archive.dtype = dtype->dtype;
    } else if (untyped_) {
      fail("its tensor has no element type");
    }
    archive.first = source_number(args[1], "storage offset");
    archive.shape = dims(args[2], "shape");
    archive.strides = dims(args[3], "strides");
    if (archive.shape.size() != archive.strides.size())
      fail("its tensor has strides of another rank than its shape");
    const auto element = static_cast<int64_t>(size_of(archive.dtype));
    if (__builtin_mul_overflow(count_, untyped_ ? 1 : element, &bytes))
      fail("its tensor has an impossible size");
    check_extent(bytes / element);
  }

  TensorArchive archive;
  std::string key;    // the storage's key: its record is "data/<key>"
  int64_t bytes = 0;  // size of the storage

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }
  int64_t source_number(PickleValue value, const char* what) const {
    const auto number = value.integer();
    if (!number || *number < 0) fail("the {} of its tensor is no whole number from 0 on", what);
    return *number;
  }
  Dims dims(PickleValue value, const char* what) const {
    const auto parts = value.tuple();
    if (!parts || parts->size() > 64) fail("the {} of its tensor is no tuple of at most 64", what);
    Dims dims;
    for (const PickleValue& part : *parts) dims.push_back(source_number(part, what));
    return dims;
  }
  // ('storage', class, key, location, count); the location (device) is ignored.
  void storage(PickleValue value) {
    const auto id = value.persistent_id();
    const auto parts = id ? id->tuple() : std::nullopt;
    if (!parts || parts->size() != 5 || (*parts)[0].text() != "storage") fail("its tensor has no storage");
    const auto kind = (*parts)[1].global();
    const auto name = (*parts)[2].text();
    if (!kind || (kind->which != PickleClass::kStorage && kind->which != PickleClass::kUntypedStorage))
      fail("the storage of its tensor is of an unknown class");
    if (!name || name->empty() || name->size() > 20) fail("the storage of its tensor has no key");
    key = *name;
    untyped_ = kind->which == PickleClass::kUntypedStorage;
    archive.dtype = kind->dtype;
    count_ = source_number((*parts)[4], "storage size");
  }
  // The last element must be inside the storage, and the storage large enough for all of them.
  void check_extent(int64_t count) const {
    const auto elements = element_count(archive.shape);
    int64_t total = 0;
    if (!elements || __builtin_mul_overflow(*elements, static_cast<int64_t>(size_of(archive.dtype)), &total))
      fail("its tensor has an impossible shape");
    int64_t last = archive.first;
    bool overflow = last > count;
    if (*elements > 0) {
      for (size_t dim = 0; dim < archive.shape.size(); ++dim) {
        int64_t reach = 0;
        overflow |= __builtin_mul_overflow(archive.shape[dim] - 1, archive.strides[dim], &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
      }
      overflow |= last >= count;
    }
    if (overflow) fail("its tensor reaches beyond its storage of {} elements", count);
    if (*elements > count)  // with strides of 0 a few bytes would represent any number of elements
      fail(
          "its tensor has {} elements, but its storage only {}: it was expanded, and has to be saved "
          "contiguous",
          *elements, count);
  }

  const std::string& file_;
  bool untyped_ = false;
  int64_t count_ = 0;
};

}  // namespace

TensorArchive open_tensor_archive(ByteSource& entry) {
  EdgeCache source(entry);
  const ZipSlice zip = open_zip(source);
  const std::string pickle = read_pickle_record(source, zip, kMaxTensorPickle);
  TensorPickle tensor(entry.name(), read_pickle(bytes_of(pickle), entry.name()));
  const ZipRecord* data = zip.find("data/" + tensor.key);
  if (!data || data->data_bytes != static_cast<uint64_t>(tensor.bytes))
    throw_data("{}: the record data/{} of its archive has {} bytes, expected {}", entry.name(),
               printable(tensor.key), data ? fmt::format("{}", data->data_bytes) : "no", tensor.bytes);
  tensor.archive.data = *data;
  return std::move(tensor.archive);
}

TensorArchive open_tensor_archive(ByteSource& entry, const std::string& key, const TensorRecord& record,
                                  const Chunk& chunk) {
  TensorArchive archive = open_tensor_archive(entry);
  if (archive.dtype != record.dtype || archive.shape != chunk.shape)
    throw_data("{}: tensor {} at bytes {} to {} is {}, the index says {}", entry.name(), printable(key),
               chunk.where.offset, chunk.where.offset + chunk.where.length,
               describe_tensor(archive.dtype, archive.shape), describe_tensor(record.dtype, chunk.shape));
  return archive;
}

Object read_object_archive(ByteSource& entry) {
  EdgeCache source(entry);
  const ZipSlice zip = open_zip(source);
  const std::string pickle = read_pickle_record(source, zip, kMaxObjectPickle);
  const PickleTree tree = read_pickle(bytes_of(pickle), entry.name());
  return object_from_pickle(tree.root(), entry.name(), pickle.size());
}

}  // namespace hyperion::checkpoint
