#include <array>

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

// Calls f(dimension's stride) from the last dimension to the first.
template <typename F>
void for_each_stride(const Dims& shape, F f) {
  int64_t stride = 1;
  for (size_t dim = shape.size(); dim-- > 0;) {
    f(dim, stride);
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[dim], 1), &stride) && dim > 0)
      throw_bug("a tensor to be saved has impossible strides");
  }
}

void write_dims(PickleWriter& writer, const Dims& dims) {
  if (PickleWriter::tuple_needs_mark(dims.size())) writer.op(PickleOp::kMark);
  for (const int64_t extent : dims) writer.integer(extent);
  writer.tuple(dims.size());
}

// What torch._utils needs to rebuild the tensor; types without a storage class of their own count in bytes.
std::string tensor_pickle(Dtype dtype, const Dims& shape) {
  const std::string_view storage = torch_storage_class(dtype);
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
  Dims strides(shape.size());
  for_each_stride(shape, [&](size_t dim, int64_t stride) { strides[dim] = stride; });
  write_dims(writer, strides);
  writer.boolean(false);                        // requires_grad
  writer.global("collections", "OrderedDict");  // hooks
  writer.op(PickleOp::kEmptyTuple);
  writer.op(PickleOp::kReduce);
  if (storage.empty()) writer.global("torch", torch_name(dtype));
  writer.op(PickleOp::kTuple);
  writer.op(PickleOp::kReduce);
  return writer.finish();
}

// The length of that without writing it: a planner asks for millions.
uint64_t tensor_pickle_bytes(Dtype dtype, const Dims& shape) {
  static const auto of_scalar = [] {
    std::array<uint64_t, 32> bytes{};
    for (size_t i = 0; i <= static_cast<size_t>(Dtype::kFloat8E8M0FNU); ++i)
      bytes[i] = tensor_pickle(static_cast<Dtype>(i), {}).size();
    return bytes;
  }();
  const uint64_t bytes = data_bytes(dtype, shape);
  const uint64_t count = torch_storage_class(dtype).empty() ? bytes : bytes / size_of(dtype);
  uint64_t length = of_scalar[static_cast<size_t>(dtype)] + pickled_bytes(static_cast<int64_t>(count)) - 2;
  if (PickleWriter::tuple_needs_mark(shape.size())) length += 2;
  for_each_stride(shape, [&](size_t dim, int64_t stride) {
    length += pickled_bytes(shape[dim]) + pickled_bytes(stride);
  });
  return length;
}

// Everything up to the elements.
ZipWriter begin_tensor(Dtype dtype, const Dims& shape) {
  ZipWriter zip;
  zip.add(kPickle, tensor_pickle(dtype, shape));
  zip.add(kByteOrder, kLittle);
  zip.add(kVersion, kThree);
  zip.begin_elsewhere(kData, data_bytes(dtype, shape), kAlignment);
  return zip;
}

}  // namespace

uint64_t tensor_archive_data_offset(Dtype dtype, const Dims& shape) {
  const uint64_t headers = ZipWriter::header_bytes(kPickle) + ZipWriter::header_bytes(kByteOrder) +
                           ZipWriter::header_bytes(kVersion) + ZipWriter::header_bytes(kData);
  const uint64_t unaligned = headers + tensor_pickle_bytes(dtype, shape) + kLittle.size() + kThree.size();
  return unaligned + ZipWriter::padding(unaligned, kAlignment);
}

uint64_t tensor_archive_bytes(Dtype dtype, const Dims& shape) {
  const uint64_t bytes = data_bytes(dtype, shape);
  const uint64_t directory_at =
      tensor_archive_data_offset(dtype, shape) + bytes + ZipWriter::descriptor_bytes(bytes);
  return directory_at + ZipWriter::directory_entry_bytes(kPickle, 0) +
         ZipWriter::directory_entry_bytes(kByteOrder, 0) + ZipWriter::directory_entry_bytes(kVersion, 0) +
         ZipWriter::directory_entry_bytes(kData, bytes) + ZipWriter::end_bytes(directory_at);
}

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
