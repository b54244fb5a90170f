#include "checkpoint/format/zip/zip_writer.h"

#include <algorithm>
#include <utility>

#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/format/zip/zip_layout.h"

namespace hyperion::checkpoint {
namespace {

constexpr std::string_view kFolder = "archive/";

bool is_wide(uint64_t value) {
  return value >= zip::kIn64;
}
uint32_t narrow(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, zip::kIn64));
}

}  // namespace

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
  // An empty record needs no descriptor.
  const auto flags = static_cast<uint16_t>(zip::kUtf8Name | (bytes > 0 ? zip::kHasDescriptor : 0));
  records_.push_back({.name = std::string(kFolder).append(name),
                      .at = position(),
                      .bytes = bytes,
                      .crc = 0,
                      .flags = flags});
  const uint64_t unaligned = position() + sizeof(zip::LocalHeader) + records_.back().name.size();
  const uint64_t missing = (alignment - unaligned % alignment) % alignment;
  // An extra field takes at least 4 bytes.
  local_header(records_.back(), missing == 0 || missing >= 4 ? missing : missing + alignment);
}

void ZipWriter::end_elsewhere(uint32_t crc) {
  Record& record = records_.back();
  taken_ += record.bytes;
  if (record.bytes == 0) return;
  record.crc = crc;
  if (is_wide(record.bytes))
    raw(zip::Descriptor<uint64_t>{.crc = crc, .packed_bytes = record.bytes, .bytes = record.bytes});
  else
    raw(zip::Descriptor<uint32_t>{
        .crc = crc, .packed_bytes = narrow(record.bytes), .bytes = narrow(record.bytes)});
}

void ZipWriter::local_header(const Record& record, uint64_t padding) {
  zip::LocalHeader header{.flags = record.flags,
                          .name_bytes = static_cast<uint16_t>(record.name.size()),
                          .extra_bytes = static_cast<uint16_t>(padding)};
  if (!(record.flags & zip::kHasDescriptor)) {
    header.crc = record.crc;
    header.packed_bytes = header.bytes = narrow(record.bytes);
  }
  raw(header);
  text_ += record.name;
  if (padding > 0) {  // PyTorch marks its padding by "FB"
    text_ += "FB";
    raw(static_cast<uint16_t>(padding - 4));
    text_.append(padding - 4, 'Z');
  }
}

void ZipWriter::finish() {
  const uint64_t at = position();
  for (const Record& record : records_) {
    const bool wide = is_wide(record.bytes);
    const uint16_t version = wide ? 45 : 20;
    raw(zip::CentralHeader{.made_by = version,
                           .version = version,
                           .flags = record.flags,
                           .crc = record.crc,
                           .packed_bytes = narrow(record.bytes),
                           .bytes = narrow(record.bytes),
                           .name_bytes = static_cast<uint16_t>(record.name.size()),
                           .extra_bytes = static_cast<uint16_t>(wide ? sizeof(zip::Extra64) : 0),
                           .at = narrow(record.at)});
    text_ += record.name;
    if (wide) raw(zip::Extra64{.bytes = record.bytes, .packed_bytes = record.bytes});
  }
  const uint64_t bytes = position() - at, count = records_.size();
  if (is_wide(at)) {
    const uint64_t end64 = position();
    raw(zip::End64{.disk_records = count, .records = count, .bytes = bytes, .at = at});
    raw(zip::Locator64{.at = end64});
  }
  raw(zip::End{.disk_records = static_cast<uint16_t>(count),
               .records = static_cast<uint16_t>(count),
               .bytes = narrow(bytes),
               .at = narrow(at)});
}

std::string ZipWriter::take_text() {
  taken_ += text_.size();
  return std::exchange(text_, {});
}

}  // namespace hyperion::checkpoint
