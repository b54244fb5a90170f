// Looks for damage in a checkpoint, all of it, and says what lies there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hyperion {

struct Damage {
  std::string file;
  std::string what;                 // one sentence that names path and bytes
  uint64_t begin = 0, end = 0;      // bytes of the file; both 0: all of it
  std::vector<std::string> keys{};  // tensors and values that lie there, as far as the index can be read
};

struct VerifiedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string compared;  // what was: "size", "size, checksums, CRCs"
};

struct Verification {
  std::filesystem::path folder;
  std::string
      kind;  // the manifest's, "damaged" (it cannot be read), "foreign" (DCP without one), "safetensors"
  std::vector<VerifiedFile> files;
  std::vector<Damage> damages;
  std::vector<std::string> notes;  // what is odd but no damage
  bool whole() const { return damages.empty(); }
};

// Manifest, save id, sizes, and that the index points inside the files. `full`: also the checksums of all
// blocks and the CRCs of all archives. CRCs are compared anyhow where there is no manifest, because nothing
// else could tell. Every failure to read is a Damage; nothing is thrown for what lies on disk.
Verification verify_checkpoint(const std::filesystem::path& folder, bool full);

}  // namespace hyperion
