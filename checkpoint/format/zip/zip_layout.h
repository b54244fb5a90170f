// The headers of the zip format, as stored in a file: little-endian, without gaps.
#pragma once

#include <bit>
#include <cstdint>

namespace hyperion::checkpoint::zip {

static_assert(std::endian::native == std::endian::little);

constexpr uint16_t kHasDescriptor = 0x0008, kUtf8Name = 0x0800;  // flags
constexpr uint16_t kStored = 0;                                  // method
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // marks a 32-bit field whose value is in a 64-bit one
constexpr uint16_t kShortIn64 = 0xFFFF;

#pragma pack(push, 1)

// Precedes the data of a record.
struct LocalHeader {
  static constexpr uint32_t kSignature = 0x04034b50;
  uint32_t signature = kSignature;
  uint16_t version = 20, flags = 0, method = kStored;
  uint32_t time = 0, crc = 0, packed_bytes = 0, bytes = 0;
  uint16_t name_bytes = 0, extra_bytes = 0;
};

// Follows the data of a record whose checksum was not known in advance. `Size` is uint64_t if 32 bits do
// not suffice.
template <typename Size>
struct Descriptor {
  uint32_t signature = 0x08074b50;
  uint32_t crc = 0;
  Size packed_bytes = 0, bytes = 0;
};

// Describes a record in the directory.
struct CentralHeader {
  static constexpr uint32_t kSignature = 0x02014b50;
  uint32_t signature = kSignature;
  uint16_t made_by = 20, version = 20, flags = 0, method = kStored;
  uint32_t time = 0, crc = 0, packed_bytes = 0, bytes = 0;
  uint16_t name_bytes = 0, extra_bytes = 0, comment_bytes = 0, disk = 0, attributes = 0;
  uint32_t more_attributes = 0, at = 0;  // at: of the local header
};

// An extra field with 64-bit sizes.
struct Extra64 {
  static constexpr uint16_t kKind = 1;
  uint16_t kind = kKind, length = 16;
  uint64_t bytes = 0, packed_bytes = 0;
};

// The end records follow the directory. The two 64-bit ones come first, and only if they are needed.
struct End64 {
  static constexpr uint32_t kSignature = 0x06064b50;
  static constexpr uint64_t kLength = 44;
  uint32_t signature = kSignature;
  uint64_t length = kLength;  // length of the rest
  uint16_t made_by = 45, version = 45;
  uint32_t disk = 0, directory_disk = 0;
  uint64_t disk_records = 0, records = 0, bytes = 0, at = 0;
};
struct Locator64 {
  static constexpr uint32_t kSignature = 0x07064b50;
  uint32_t signature = kSignature;
  uint32_t disk = 0;
  uint64_t at = 0;  // position of the End64
  uint32_t disks = 1;
};
struct End {
  static constexpr uint32_t kSignature = 0x06054b50;
  uint32_t signature = kSignature;
  uint16_t disk = 0, directory_disk = 0, disk_records = 0, records = 0;
  uint32_t bytes = 0, at = 0;
  uint16_t comment_bytes = 0;
};

#pragma pack(pop)

static_assert(sizeof(LocalHeader) == 30 && sizeof(CentralHeader) == 46 && sizeof(Extra64) == 20 &&
              sizeof(End64) == 12 + End64::kLength && sizeof(Locator64) == 20 && sizeof(End) == 22);

}  // namespace hyperion::checkpoint::zip
