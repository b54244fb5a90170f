#include "base/standard_streams.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("stack frames of libtorch leave a message and everything else stays") {
  CHECK(without_stack_frames(
            "[W1122 TCPStore.cpp:106] [c10d] sendBytes failed: Broken pipe\n"
            "Exception raised from sendBytes at /c10d/Utils.hpp:653 (most recent call first):\n"
            "frame #0: c10::Error::Error() + 0x9d (0x7f in libc10.so)\n"
            "frame #1: <unknown function> + 0x6a (0x7f in libtorch_cpu.so)\n"
            "\n"
            "the end\n") == "[W1122 TCPStore.cpp:106] [c10d] sendBytes failed: Broken pipe\nthe end\n");
  CHECK(without_stack_frames("one\n\ntwo") == "one\n\ntwo");
  CHECK(without_stack_frames("").empty());
}

}  // namespace hyperion
