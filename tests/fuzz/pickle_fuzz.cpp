// Any bytes as a pickle, and its value as a plain value; what can be read must survive a round trip.
#include "checkpoint/format/pickle/pickle_object.h"
#include "checkpoint/format/pickle/pickle_reader.h"
#include "tests/fuzz/fuzz.h"

using namespace hyperion;
using namespace hyperion::checkpoint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_bad_data_at_most([&] {
    const PickleTree tree = read_pickle(fuzz::as_bytes(data, size), "fuzz");
    const Object object = object_from_pickle(tree.root(), "fuzz", size);
    repr(object);
    PickleWriter writer;
    write_object(writer, object);
    const std::string again = writer.finish();
    const PickleTree second = read_pickle(std::as_bytes(std::span(again)), "again");
    PickleWriter rewriter;
    write_object(rewriter, object_from_pickle(second.root(), "again", again.size()));
    if (rewriter.finish() != again) std::abort();  // compared as bytes: NaNs differ from themselves
  });
  return 0;
}
