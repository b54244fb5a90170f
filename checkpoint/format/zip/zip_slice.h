// Reads the zip archives of which PyTorch's files consist: everything stored, nothing compressed. No
// length, offset or name in them is trusted.
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
  std::string name;  // relative to the archive's folder: "data.pkl", "data/0"
  uint64_t data_offset = 0, data_bytes = 0;
  // nullopt if the archive was written without checksums (all of them 0).
  std::optional<uint32_t> crc;
};

struct ZipSlice {
  std::vector<ZipRecord> records;
  const ZipRecord* find(std::string_view name) const;
};

// Reads the table of contents of an archive that fills `archive`. Checks that records are inside, do not
// overlap, are stored uncompressed, share one folder, have unique names, and that their local headers
// agree. Throws Error(kBadData) naming the file, also if there are more than 16 records.
ZipSlice open_zip(ByteSource& archive);

// Reads the record's bytes and verifies its checksum if there is one. Throws Error(kBadData).
std::string read_record(ByteSource& archive, const ZipRecord& record);

// Compares the checksum of a record with its bytes. They are read in pieces of a multiple of 16 bytes, and
// `scan` is called for each, even without a checksum. Throws Error(kBadData) naming file, record and both
// values. Without a checksum and `scan` nothing is read.
using ScanBytes = std::function<void(const char* data, uint64_t bytes)>;
void check_crc(ByteSource& archive, const ZipRecord& record, const ScanBytes& scan = {});

}  // namespace hyperion::checkpoint
