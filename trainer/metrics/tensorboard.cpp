#include "trainer/metrics/tensorboard.h"

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <concepts>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/process.h"

namespace hyperion::metrics {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

template <typename T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

// A field of protobuf's wire format: (number << 3 | wire type), then its content.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
std::string field(uint32_t number, int64_t value) {
  std::string out;
  append_varint(out, number << 3 | kVarint);
  append_varint(out, static_cast<uint64_t>(value));
  return out;
}
std::string field(uint32_t number, std::string_view bytes) {
  std::string out;
  append_varint(out, number << 3 | kBytes);
  append_varint(out, bytes.size());
  return out.append(bytes);
}
template <std::floating_point Float>
std::string field(uint32_t number, Float value) {
  std::string out;
  append_varint(out, number << 3 | (sizeof value == 8 ? kFixed64 : kFixed32));
  append_raw(out, value);
  return out;
}

// Event{1 wall_time, 2 step, 5 summary{1 value}}
std::string summary_event(double wall_time, int64_t step, const std::string& value) {
  return field(1, wall_time) + field(2, step) + field(5, field(1, value));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

EventWriter::EventWriter(const std::filesystem::path& folder) {
  require_place_for_folder(folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw_pre_checkpoint("{}: cannot create the TensorBoard folder: {}", printable(folder), error.message());
  static std::atomic<int> count{0};  // two writers of one process in one second must not share a name
  const double now = unix_seconds();
  do {  // a new file: neither another run's nor where a link leads
    path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", static_cast<int64_t>(now), host_name(),
                                 ::getpid(), count++);
    file_ = std::fopen(path_.c_str(), "wbxe");
  } while (file_ == nullptr && errno == EEXIST);
  if (file_ == nullptr)
    throw_pre_checkpoint("{}: cannot create the event file: {}", printable(path_), std::strerror(errno));
  write_record(field(1, now) + field(3, "brain.Event:2"));
  flush();
}

EventWriter::~EventWriter() {
  flush();
  if (file_ != nullptr) std::fclose(file_);
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step, double wall_time) {
  write_record(summary_event(wall_time, step, field(1, tag) + field(2, static_cast<float>(value))));
}

void EventWriter::text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time) {
  constexpr int64_t kString = 7;                             // tensorflow.DataType DT_STRING
  const std::string shape = field(2, field(1, int64_t{1}));  // one dimension, of size 1
  const std::string tensor = field(1, kString) + field(2, shape) + field(8, markdown);
  const std::string metadata = field(1, field(1, "text"));  // the plugin's name
  write_record(
      summary_event(wall_time, step,
                    field(1, fmt::format("{}/text_summary", tag)) + field(8, tensor) + field(9, metadata)));
}

// u64 length, masked crc of those 8 bytes, payload, masked crc of the payload.
void EventWriter::write_record(const std::string& event) {
  if (file_ == nullptr) return;
  std::string record;
  append_raw(record, static_cast<uint64_t>(event.size()));
  append_raw(record, masked_crc32c(record));
  record += event;
  append_raw(record, masked_crc32c(event));
  std::fwrite(record.data(), 1, record.size(), file_);
}

void EventWriter::flush() {
  if (file_ == nullptr || (std::fflush(file_) == 0 && std::ferror(file_) == 0)) return;
  log_warning("{}: write failed ({}): no more TensorBoard data is written", path_.string(),
              std::strerror(errno));
  std::fclose(file_);
  file_ = nullptr;
}

}  // namespace hyperion::metrics
