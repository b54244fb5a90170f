// dcp_reencode_tool IN OUT SHARDS: reads a DCP folder with our reader, writes it again with our writer and
// another number of shards. For tests/interop/dcp_reencode.py.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/support/dcp_folder.h"

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("usage: dcp_reencode_tool IN OUT SHARDS\n", stderr);
    return 2;
  }
  try {
    hyperion::test::write_dcp_folder(arguments[2], hyperion::test::read_dcp_folder(arguments[1]),
                                     std::atoi(arguments[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
