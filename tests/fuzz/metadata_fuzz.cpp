// Any bytes as a .metadata file, and as that of each of two ranks; an index that is accepted must survive a
// round trip, and two copies of it are one index.
#include "checkpoint/format/dcp/metadata.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/encode_index.h"

using namespace hyperion;
using namespace hyperion::checkpoint;
using namespace hyperion::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_bad_data_at_most([&] {
    const IndexFile file{"fuzz", {reinterpret_cast<const char*>(data), size}}, copies[] = {file, file};
    const CheckpointIndex index = decode_metadata("", {&file, 1});
    const std::string again = encode_index(index);
    if (encode_index(decode_index(again)) != again) std::abort();
    if (decode_metadata("", copies).tensors.size() != index.tensors.size()) std::abort();
  });
  return 0;
}
