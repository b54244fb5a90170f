// The manifest is hyperion.json, next to .metadata: it says what a checkpoint is (step, kind, writer) and
// every file's size and checksums, so that reads can be verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/choice.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

constexpr const char* kManifestFile = "hyperion.json";
constexpr int kManifestVersion = 1;
// Files are hashed in blocks of this size, so that a rank can verify only the ranges it reads.
constexpr uint64_t kBlockBytes = uint64_t{4} << 20;

struct FileRecord {
  std::string name;  // one path component
  uint64_t bytes = 0;
  std::vector<uint64_t> blocks;  // XXH3-64 of each block; the last may be short; empty for an empty file
  bool operator==(const FileRecord&) const = default;
  static auto members(auto& self) { return std::tie(self.name, self.bytes, self.blocks); }
  uint64_t checksum() const;  // XXH3-64 of the concatenated block hashes, little-endian
};

enum class CheckpointKind {
  kFull,           // the full state
  kModel,          // weights only
  kSeed,           // the initial weights, written by a job that then ends
  kPreCheckpoint,  // the full state, written before step 1 to prove that a checkpoint can be saved
  // Kinds of folders without a readable manifest:
  kForeign,      // another program's checkpoint in DCP format
  kSafetensors,  // weights in safetensors
  kDamaged,      // the manifest cannot be read
  kUnreadable,   // this user may not read it
};
constexpr auto choices(CheckpointKind) {
  return choice_list<CheckpointKind>({{CheckpointKind::kFull, "full"},
                                      {CheckpointKind::kModel, "model"},
                                      {CheckpointKind::kSeed, "seed"},
                                      {CheckpointKind::kPreCheckpoint, "pre-checkpoint"},
                                      {CheckpointKind::kForeign, "foreign"},
                                      {CheckpointKind::kSafetensors, "safetensors"},
                                      {CheckpointKind::kDamaged, "damaged"},
                                      {CheckpointKind::kUnreadable, "unreadable"}});
}

struct Manifest {
  int format_version = kManifestVersion;
  std::string save_id;  // also in .metadata
  int64_t step = 0;
  int world_size = 1;
  CheckpointKind kind = CheckpointKind::kFull;  // one of the first four
  std::string config_hash;                      // hash of the resolved configuration
  std::string writer;                           // program and version
  int64_t unix_time = 0;
  std::map<std::string, std::string> facts;
  std::vector<FileRecord> files;  // all except hyperion.json itself
};

// The text ends with a checksum of everything before it.
std::string to_json(const Manifest& manifest);
// `name` is for messages. Throws Error(kBadData) for a text that is damaged, hostile, or of a newer format.
Manifest manifest_from_json(std::string_view text, const std::string& name = kManifestFile);

// Both read a checkpoint's folder and throw Error(kBadData).
std::string read_manifest_text(const std::filesystem::path& folder);
Manifest read_manifest(const std::filesystem::path& folder);
// Checks that every file is a regular file of its recorded size. Throws Error(kBadData) naming the first
// that is not, with both sizes.
void check_sizes(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace hyperion::checkpoint
