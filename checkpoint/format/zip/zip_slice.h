// The zip archives that PyTorch's files consist of: everything stored, nothing compressed. Trusts no length,
// offset or name it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/types/byte_source.h"

namespace hyperion::checkpoint {

struct ZipRecord {
  std::string name;  // without the archive's folder: "data.pkl", "data/0"
  uint64_t data_offset = 0, data_bytes = 0;
  // None when the archive was written with checksums off (all of them 0): there is nothing to verify.
  std::optional<uint32_t> crc;
};

struct ZipSlice {
  std::vector<ZipRecord> records;
  const ZipRecord* find(std::string_view name) const;
};

// The table of contents of an archive that fills `archive`. Checked: records are inside, do not overlap, are
// stored plainly, share one folder, are named once, and their local headers agree. Throws Error(kBadData)
// naming the file; also when there are more than 16.
ZipSlice open_zip(ByteSource& archive);

// The record's bytes; its checksum must be right where there is one. Throws Error(kBadData).
std::string read_record(ByteSource& archive, const ZipRecord& record);

// Compares the checksum of a record with its bytes, reading them in pieces of a multiple of 16 bytes, with
// each of which `scan` is called, also where there is no checksum. Throws Error(kBadData) naming file, record
// and both values. Without a checksum and `scan` nothing is read.
using ScanBytes = std::function<void(const char* data, uint64_t bytes)>;
void check_crc(ByteSource& archive, const ZipRecord& record, const ScanBytes& scan = {});

}  // namespace hyperion::checkpoint
