// Any bytes as hyperion.json, or as a message of another rank: an Error or a value, which comes back from its
// own text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/pack.h"
#include "checkpoint/storage/folder_lock.h"
#include "checkpoint/storage/manifest.h"

using namespace hyperion;
using namespace hyperion::checkpoint;

namespace {

void parse(std::string_view text) {
  try {
    const Manifest manifest = manifest_from_json(text);
    if (manifest_from_json(to_json(manifest)).files != manifest.files) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse(text);
  // With a right checksum, so that what lies behind it is reached as well.
  const size_t digits = text.rfind("\"checksum\": \"");
  if (digits != text.npos) {
    std::string whole(text.substr(0, digits + 13));
    whole += fmt::format("{:016x}", hash_text(whole));
    parse(whole + "\"\n}\n");
  }
  try {
    unpack<FileRecord>(text);
  } catch (const Error&) {
  }
  (void)lock_owner_from_json(text);
  return 0;
}
