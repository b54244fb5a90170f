// A folder for each test, and bytes to fill files with.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/storage/shard_writer.h"
#include "tests/support/error_of.h"
#include "tests/support/in_child.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::checkpoint {

struct StorageFixture {
  test::TemporaryFolder folder;
  const std::filesystem::path& root = folder.path();
  ~StorageFixture() {
    arm_faults("", 0);
    observe_durable_steps({});
  }
};

inline std::string some_bytes(uint64_t count, uint32_t seed = 1) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

inline FileRecord write_shard(const std::filesystem::path& folder, const std::string& name,
                              const std::string& bytes, int rank = 0) {
  ShardWriter file(folder, name, rank);
  file.append(bytes.data(), bytes.size());
  return file.close();
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Changes one byte of a file in place.
inline void damage(const std::filesystem::path& path, uint64_t offset, char mask = 1) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ mask);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

// A committed checkpoint with two files, as a save makes it.
inline Manifest save_checkpoint(const CheckpointFolder& folder, int64_t step,
                                CheckpointKind kind = CheckpointKind::kFull, uint32_t seed = 1) {
  const std::string id = "save" + std::to_string(step) + "n" + std::to_string(seed);
  const std::filesystem::path incoming = folder.begin(id, true);
  Manifest manifest;
  manifest.save_id = id;
  manifest.step = step;
  manifest.kind = kind;
  try {
    manifest.files.push_back(write_shard(incoming, "__0_0.distcp", some_bytes(10000, seed)));
    manifest.files.push_back(write_shard(incoming, ".metadata", "index of " + id));
    write_shard(incoming, kManifestFile, to_json(manifest));
    folder.commit(incoming, step);
  } catch (...) {
    folder.abandon(incoming);
    throw;
  }
  return manifest;
}

// Names in a folder, sorted, joined by blanks; .lock left out.
inline std::string names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names)
    if (name != ".lock") text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace hyperion::checkpoint
