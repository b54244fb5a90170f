// Writes TensorBoard event files without protobuf: it encodes the few needed message fields by hand.
// Format: tensorflow/core/util/event.proto and tensorflow/core/lib/io/record_writer (TFRecord framing).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace hyperion::metrics {

// Return CRC-32C (Castagnoli) and TFRecord's masked form of it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// Writes one event file in `folder`, which it creates. Not thread-safe. Records reach the file at flush() and
// at destruction. A failed write (full disk) is logged once and ends the writing; training continues.
class EventWriter {
 public:
  // Throws Error(kUsage) naming the path if the folder or file cannot be created.
  explicit EventWriter(const std::filesystem::path& folder);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // `wall_time` is in Unix seconds. The value is stored as float32, TensorBoard's scalar type.
  void scalar(std::string_view tag, double value, int64_t step, double wall_time);
  // TensorBoard shows the Markdown on its Text tab.
  void text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;  // null after a failed write
};

}  // namespace hyperion::metrics
