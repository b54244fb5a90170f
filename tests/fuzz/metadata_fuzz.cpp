// Any bytes as a .metadata file; an index that is accepted must survive a round trip.
#include "checkpoint/format/dcp/metadata.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/encode_index.h"

using namespace hyperion;
using namespace hyperion::checkpoint;
using namespace hyperion::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_bad_data_at_most([&] {
    const CheckpointIndex index = decode_metadata(fuzz::as_bytes(data, size), "fuzz");
    const std::string again = encode_index(index);
    if (encode_index(decode_metadata(std::as_bytes(std::span(again)), "again")) != again) std::abort();
  });
  return 0;
}
