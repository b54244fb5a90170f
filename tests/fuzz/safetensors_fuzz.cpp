// Any bytes as a safetensors file; and as the header of one whose length is right.
#include "checkpoint/format/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/memory_source.h"

using namespace hyperion;
using namespace hyperion::checkpoint;
using namespace hyperion::test;

namespace {

void read_header(std::span<const std::byte> bytes) {
  fuzz::expect_bad_data_at_most([&] {
    MemorySource file("fuzz", bytes);
    uint64_t covered = 0;
    const SafetensorsHeader header = read_safetensors_header(file);
    for (const auto& [name, tensor] : header.tensors) {
      file.require_inside(tensor.offset, tensor.bytes);
      covered += tensor.bytes;
    }
    if (covered > bytes.size()) std::abort();
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = fuzz::as_bytes(data, size);
  read_header(bytes);
  if (size < 8) return 0;
  std::string sound(reinterpret_cast<const char*>(data), size);  // the length, then JSON
  const uint64_t length = size - 8;
  std::memcpy(sound.data(), &length, sizeof length);
  read_header(std::as_bytes(std::span(sound)));
  return 0;
}
