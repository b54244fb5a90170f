// Reads and writes the entries of .distcp files. Each is a complete torch.save archive (a zip file) of one
// tensor or one plain value, which torch.load reads if it is cut out.
#pragma once

#include <cstdint>
#include <string>

#include "base/box.h"
#include "checkpoint/format/zip/zip_slice.h"
#include "checkpoint/types/byte_source.h"
#include "checkpoint/types/dtype.h"
#include "checkpoint/types/index.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {

// --- writing ---

// An archive of a contiguous row-major tensor is head + elements + tail. The elements begin at a multiple
// of 64 from the archive's start.
std::string tensor_archive_head(Dtype dtype, const Dims& shape);
std::string tensor_archive_tail(Dtype dtype, const Dims& shape, uint32_t crc);  // crc32() of the elements
uint64_t tensor_archive_bytes(Dtype dtype, const Dims& shape);                  // head, elements and tail

std::string object_archive(const Object& object);

// --- reading ---

struct TensorArchive {
  Dtype dtype = Dtype::kFloat32;
  Dims shape, strides;  // strides in elements, none negative
  int64_t first = 0;    // index in the record of the tensor's first element
  ZipRecord data;       // its storage
};

// Reads and checks everything but the elements: the tensor is inside its record. Throws Error(kBadData)
// naming the file if it is not an archive of one plain tensor.
TensorArchive open_tensor_archive(ByteSource& entry);
// Reads and checks a chunk of tensor `key` in this way. It must also have the type and shape that the index
// records.
TensorArchive open_tensor_archive(ByteSource& entry, const std::string& key, const TensorRecord& record,
                                  const Chunk& chunk);

// Reads the value in an archive of a plain value and verifies its checksums. Pickles inside bytes values
// are not decoded. Throws Error(kBadData).
Object read_object_archive(ByteSource& entry);

// Builds the result of open_tensor_archive() for a row-major tensor whose elements begin at byte
// `data_offset`, without a checksum. For bytes of known layout.
TensorArchive row_major_archive(Dtype dtype, const Dims& shape, uint64_t data_offset);

// Copies a box of the tensor to `out`, contiguous and row-major. The box must be inside the tensor (else
// Error(kBug)). A box that is contiguous in the file is one read. For columns each run is read separately;
// the bytes between two runs are read too only if they are fewer than a page (which comes from the disk
// either way) or the runs are very short. That holds at most 16 MiB.
void read_box(ByteSource& entry, const TensorArchive& archive, const Box& box, void* out);

}  // namespace hyperion::checkpoint
