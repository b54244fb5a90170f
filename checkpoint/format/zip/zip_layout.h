// The numbers of the zip format that its reader and writer share.
#pragma once

#include <cstdint>

namespace hyperion::checkpoint::zip {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDescriptor = 0x08074b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                   kLocator64Bytes = 20;
constexpr uint16_t kHasDescriptor = 0x0008, kUtf8Name = 0x0800;
constexpr uint16_t kExtra64 = 1;        // the extra field with 64-bit sizes
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // a 32-bit field whose value is in a 64-bit one
constexpr uint16_t kShortIn64 = 0xFFFF;
constexpr uint16_t kStored = 0;

}  // namespace hyperion::checkpoint::zip
