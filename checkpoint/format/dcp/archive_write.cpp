#include "base/error.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/metadata_tiling.h"
#include "checkpoint/format/pickle/pickle_object.h"
#include "checkpoint/format/zip/zip_writer.h"

namespace hyperion::checkpoint {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr std::string_view kPickle = "data.pkl", kByteOrder = "byteorder", kVersion = "version",
                           kData = "data/0";
constexpr std::string_view kLittle = "little", kThree = "3\n";

uint64_t data_bytes(Dtype dtype, const Dims& shape) {
  const auto count = element_count(shape);
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, static_cast<int64_t>(size_of(dtype)), &bytes))
    throw_bug("a tensor to be saved has an impossible shape");
  return static_cast<uint64_t>(bytes);
}

void write_dims(PickleWriter& writer, const Dims& dims) {
  if (PickleWriter::tuple_needs_mark(dims.size())) writer.op(PickleOp::kMark);
  for (const int64_t extent : dims) writer.integer(extent);
  writer.tuple(dims.size());
}

// Writes the arguments from which torch._utils rebuilds the tensor; types without a storage class are
// counted in bytes.
std::string tensor_pickle(Dtype dtype, const Dims& shape) {
  const std::string_view storage = traits_of(dtype).storage;
  const uint64_t bytes = data_bytes(dtype, shape);
  PickleWriter writer;
  writer.reserve(256);
  writer.global("torch._utils", storage.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  writer.op(PickleOp::kMark);
  writer.op(PickleOp::kMark);
  writer.text("storage");
  writer.global(storage.empty() ? "torch.storage" : "torch", storage.empty() ? "UntypedStorage" : storage);
  writer.text("0");
  writer.text("cpu");
  writer.integer(static_cast<int64_t>(storage.empty() ? bytes : bytes / size_of(dtype)));
  writer.op(PickleOp::kTuple);
  writer.op(PickleOp::kPersistentId);
  writer.integer(0);  // storage offset
  write_dims(writer, shape);
  write_dims(writer, row_major_strides(shape));
  writer.boolean(false);                        // requires_grad
  writer.global("collections", "OrderedDict");  // hooks
  writer.op(PickleOp::kEmptyTuple);
  writer.op(PickleOp::kReduce);
  if (storage.empty()) writer.global("torch", torch_name(dtype));
  writer.op(PickleOp::kTuple);
  writer.op(PickleOp::kReduce);
  return writer.finish();
}

// Writes everything before the elements.
ZipWriter begin_tensor(Dtype dtype, const Dims& shape) {
  ZipWriter zip;
  zip.add(kPickle, tensor_pickle(dtype, shape));
  zip.add(kByteOrder, kLittle);
  zip.add(kVersion, kThree);
  zip.begin_elsewhere(kData, data_bytes(dtype, shape), kAlignment);
  return zip;
}

}  // namespace

std::string tensor_archive_head(Dtype dtype, const Dims& shape) {
  return begin_tensor(dtype, shape).take_text();
}

std::string tensor_archive_tail(Dtype dtype, const Dims& shape, uint32_t crc) {
  ZipWriter zip = begin_tensor(dtype, shape);
  zip.take_text();
  zip.end_elsewhere(crc);
  zip.finish();
  return zip.take_text();
}

uint64_t tensor_archive_bytes(Dtype dtype, const Dims& shape) {
  return tensor_archive_head(dtype, shape).size() + data_bytes(dtype, shape) +
         tensor_archive_tail(dtype, shape, /*crc=*/0).size();
}

std::string object_archive(const Object& object) {
  PickleWriter writer;
  write_object(writer, object);
  ZipWriter zip;
  zip.add(kPickle, writer.finish());
  zip.add(kVersion, kThree);
  zip.finish();
  return zip.take_text();
}

}  // namespace hyperion::checkpoint
