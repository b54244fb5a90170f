#include "checkpoint/format/zip/zip_writer.h"

#include <algorithm>
#include <utility>

#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/format/zip/zip_layout.h"

namespace hyperion::checkpoint {
namespace {

constexpr std::string_view kFolder = "archive/";
constexpr uint64_t kExtra64Bytes = 4 + 16;

bool is_wide(uint64_t value) {
  return value >= zip::kIn64;
}
uint32_t narrow(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, zip::kIn64));
}

}  // namespace

uint64_t ZipWriter::header_bytes(std::string_view name) {
  return zip::kLocalBytes + kFolder.size() + name.size();
}
// An extra field takes at least 4 bytes.
uint64_t ZipWriter::padding(uint64_t unaligned, uint64_t alignment) {
  const uint64_t missing = (alignment - unaligned % alignment) % alignment;
  return missing == 0 || missing >= 4 ? missing : missing + alignment;
}
uint64_t ZipWriter::descriptor_bytes(uint64_t bytes) {
  return bytes == 0 ? 0 : is_wide(bytes) ? 24 : 16;
}
uint64_t ZipWriter::directory_entry_bytes(std::string_view name, uint64_t bytes) {
  return zip::kCentralBytes + kFolder.size() + name.size() + (is_wide(bytes) ? kExtra64Bytes : 0);
}
uint64_t ZipWriter::end_bytes(uint64_t directory_at) {
  return zip::kEndBytes + (is_wide(directory_at) ? zip::kEnd64Bytes + zip::kLocator64Bytes : 0);
}

void ZipWriter::add(std::string_view name, std::string_view content) {
  records_.push_back({.name = std::string(kFolder).append(name),
                      .at = position(),
                      .bytes = content.size(),
                      .crc = crc32(0, content.data(), content.size()),
                      .flags = zip::kUtf8Name});
  local_header(records_.back(), 0);
  text_ += content;
}

void ZipWriter::begin_elsewhere(std::string_view name, uint64_t bytes, uint64_t alignment) {
  // An empty record has nothing to describe later.
  const auto flags = static_cast<uint16_t>(zip::kUtf8Name | (bytes > 0 ? zip::kHasDescriptor : 0));
  records_.push_back({.name = std::string(kFolder).append(name),
                      .at = position(),
                      .bytes = bytes,
                      .crc = 0,
                      .flags = flags});
  local_header(records_.back(), padding(position() + header_bytes(name), alignment));
}

void ZipWriter::end_elsewhere(uint32_t crc) {
  Record& record = records_.back();
  taken_ += record.bytes;
  if (record.bytes == 0) return;
  record.crc = crc;
  raw(zip::kDescriptor);
  raw(crc);
  if (is_wide(record.bytes)) {
    raw(record.bytes);
    raw(record.bytes);
  } else {
    raw(narrow(record.bytes));
    raw(narrow(record.bytes));
  }
}

void ZipWriter::local_header(const Record& record, uint64_t padding) {
  const bool later = record.flags & zip::kHasDescriptor;
  raw(zip::kLocalHeader);
  raw(uint16_t{20});  // version needed
  raw(record.flags);
  raw(zip::kStored);
  raw(uint32_t{0});  // time and date
  raw(later ? 0 : record.crc);
  raw(later ? 0 : narrow(record.bytes));
  raw(later ? 0 : narrow(record.bytes));
  raw(static_cast<uint16_t>(record.name.size()));
  raw(static_cast<uint16_t>(padding));
  text_ += record.name;
  if (padding > 0) {  // "FB" is how PyTorch marks its padding
    text_ += "FB";
    raw(static_cast<uint16_t>(padding - 4));
    text_.append(padding - 4, 'Z');
  }
}

void ZipWriter::finish() {
  const uint64_t at = position();
  for (const Record& record : records_) {
    const bool wide = is_wide(record.bytes);
    const auto version = static_cast<uint16_t>(wide ? 45 : 20);
    raw(zip::kCentralHeader);
    raw(version);  // made by
    raw(version);  // needed
    raw(record.flags);
    raw(zip::kStored);
    raw(uint32_t{0});  // time and date
    raw(record.crc);
    raw(narrow(record.bytes));
    raw(narrow(record.bytes));
    raw(static_cast<uint16_t>(record.name.size()));
    raw(static_cast<uint16_t>(wide ? kExtra64Bytes : 0));
    raw(uint32_t{0});  // comment, disk
    raw(uint16_t{0});  // attributes
    raw(uint32_t{0});
    raw(narrow(record.at));
    text_ += record.name;
    if (wide) {
      raw(zip::kExtra64);
      raw(static_cast<uint16_t>(kExtra64Bytes - 4));
      raw(record.bytes);
      raw(record.bytes);
    }
  }
  const uint64_t bytes = position() - at, count = records_.size();
  if (is_wide(at)) {
    const uint64_t end64 = position();
    raw(zip::kEnd64);
    raw(zip::kEnd64Bytes - 12);
    raw(uint16_t{45});
    raw(uint16_t{45});
    raw(uint64_t{0});  // disks
    raw(count);
    raw(count);
    raw(bytes);
    raw(at);
    raw(zip::kLocator64);
    raw(uint32_t{0});
    raw(end64);
    raw(uint32_t{1});
  }
  raw(zip::kEnd);
  raw(uint32_t{0});  // disks
  raw(static_cast<uint16_t>(count));
  raw(static_cast<uint16_t>(count));
  raw(narrow(bytes));
  raw(narrow(at));
  raw(uint16_t{0});  // comment
}

std::string ZipWriter::take_text() {
  taken_ += text_.size();
  return std::exchange(text_, {});
}

}  // namespace hyperion::checkpoint
