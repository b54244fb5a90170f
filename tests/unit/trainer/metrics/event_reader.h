// Reads an event file back, checking every length and checksum: an independent decoder for the writer's
// tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hyperion::metrics {

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::string tag;
  float value = 0;
  std::string plugin;  // "text" for texts
  std::string text;
};

// Throws std::runtime_error on a bad frame, checksum or field.
std::vector<ReadEvent> read_events(const std::filesystem::path& file);

// The only regular file below `folder`; throws unless there is exactly one.
std::filesystem::path only_file(const std::filesystem::path& folder);

}  // namespace hyperion::metrics
