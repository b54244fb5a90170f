// Any bytes as the entry of a .distcp file; and as the data.pkl of an otherwise sound one, whose checksums no
// mutation would get right.
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/zip/zip_slice.h"
#include "checkpoint/format/zip/zip_writer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_source.h"

using namespace hyperion;
using namespace hyperion::checkpoint;
using namespace hyperion::test;

namespace {

void read_as_tensor(std::span<const std::byte> bytes) {
  fuzz::expect_bad_data_at_most([&] {
    MemorySource entry("fuzz", bytes);
    const TensorArchive archive = open_tensor_archive(entry);
    uint64_t elements = 1;
    for (const int64_t extent : archive.shape) elements *= static_cast<uint64_t>(extent);
    if (elements <= 1 << 16) {  // strides of 0 make big tensors of few bytes
      std::string out(elements * size_of(archive.dtype), '\0');
      read_box(entry, archive, whole_box(archive.shape), out.data());
    }
    check_crc(entry, archive.data);
  });
}

void read_as_object(std::span<const std::byte> bytes) {
  fuzz::expect_bad_data_at_most([&] {
    MemorySource entry("fuzz", bytes);
    read_object_archive(entry);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = fuzz::as_bytes(data, size);
  fuzz::expect_bad_data_at_most([&] {
    MemorySource entry("fuzz", bytes);
    const ZipSlice zip = open_zip(entry);  // most inputs end here
    read_as_tensor(bytes);
    read_as_object(bytes);
    for (const ZipRecord& record : zip.records) read_record(entry, record);
  });

  ZipWriter zip;
  zip.add("data.pkl", {reinterpret_cast<const char*>(data), size});
  zip.add("version", "3\n");
  zip.add("data/0", std::string(96, 'x'));
  zip.finish();
  const std::string sound = zip.take_text();
  read_as_tensor(std::as_bytes(std::span(sound)));
  read_as_object(std::as_bytes(std::span(sound)));
  return 0;
}
