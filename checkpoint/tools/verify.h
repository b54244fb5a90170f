// Finds all damage in a checkpoint and names the tensors and values that it affects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/finite.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

struct Damage {
  std::string file;
  std::string what;                 // one sentence that names path and bytes
  uint64_t begin = 0, end = 0;      // bytes of the file; both 0: all of it
  std::vector<std::string> keys{};  // tensors and values in those bytes, as far as the index can be read
};

struct VerifiedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string compared;  // what was: "size", "size, checksums, CRCs, numbers"
  bool finite = true;    // no number in it is NaN or infinite, as far as that was compared
};

struct Verification {
  std::filesystem::path folder;
  CheckpointKind kind = CheckpointKind::kDamaged;  // the manifest's, where it can be read
  std::vector<VerifiedFile> files;
  std::vector<Damage> damages;
  NotFinite not_finite;            // tensors that hold NaN or infinite numbers
  std::vector<std::string> notes;  // what is odd but no damage
  bool whole() const { return damages.empty() && not_finite.empty(); }
};

// Manifest, save id, sizes, that the index points inside the files, the checksums of all blocks, the CRCs of
// all archives, and that all numbers of tensors are finite (a view's with those of its storage). `quick`:
// manifest, save id, sizes and index alone. Every failure to read is a Damage; nothing is thrown for what
// is on disk.
Verification verify_checkpoint(const std::filesystem::path& folder, bool quick = false);

}  // namespace hyperion::checkpoint
