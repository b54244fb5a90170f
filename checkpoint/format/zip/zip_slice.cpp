#include "checkpoint/format/zip/zip_slice.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/printable.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/format/zip/zip_layout.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMaxRecords = 16;
constexpr uint64_t kMaxDirectory = 64 << 10;

// Reads numbers and headers in sequence. Reading past the end throws.
class Fields {
 public:
  Fields(const std::string& file, std::string_view bytes) : file_(file), bytes_(bytes) {}
  template <typename T>
  T next() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view take(uint64_t bytes) {
    if (bytes > bytes_.size()) throw_data("{}: its archive's directory is cut short", file_);
    const std::string_view run = bytes_.substr(0, bytes);
    bytes_.remove_prefix(bytes);
    return run;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  const std::string& file_;
  std::string_view bytes_;
};

// A header, from the directory or the record itself.
struct Header {
  uint16_t flags = 0, method = 0;
  uint32_t crc = 0;
  uint64_t packed = 0, bytes = 0, at = 0;  // at: position of the local header
  std::string_view name;
};

struct Directory {
  uint64_t at = 0, bytes = 0, records = 0, end = 0;
};

class ZipReader {
 public:
  explicit ZipReader(ByteSource& archive) : archive_(archive) {}

  ZipSlice read() {
    const Directory directory = find_directory();
    if (directory.records > kMaxRecords)
      fail("its archive has {} records; at most {} are expected", directory.records, kMaxRecords);
    if (directory.bytes > kMaxDirectory || directory.bytes > directory.end ||
        directory.at != directory.end - directory.bytes)
      fail("its archive's directory (bytes {} to {}) does not end where it should, at {}", directory.at,
           directory.at + directory.bytes, directory.end);
    const std::string text = archive_.read_text(directory.at, directory.bytes);
    Fields fields(archive_.name(), text);
    ZipSlice slice;
    for (uint64_t i = 0; i < directory.records; ++i)
      slice.records.push_back(record(central_header(fields), directory.at));
    if (!fields.empty()) fail("its archive's directory has more than its {} records", directory.records);
    check_overlaps();
    const auto is_zero = [](const ZipRecord& record) { return record.crc == 0u; };
    if (std::ranges::all_of(slice.records, is_zero))
      for (ZipRecord& record : slice.records) record.crc.reset();
    return slice;
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data("{}: {}", archive_.name(), fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void no_archive() const {
    fail("these {} bytes are not one complete zip archive (cut short or overwritten)", archive_.size());
  }

  template <typename T>
  T read_at(uint64_t at) const {
    T header;
    archive_.read(at, &header, sizeof header);
    return header;
  }

  Directory find_directory() const {
    if (archive_.size() < sizeof(zip::End)) no_archive();
    const uint64_t end_at = archive_.size() - sizeof(zip::End);
    const auto end = read_at<zip::End>(end_at);
    if (end.signature != zip::End::kSignature || end.disk != 0 || end.directory_disk != 0 ||
        end.disk_records != end.records || end.comment_bytes != 0)
      no_archive();
    const auto wide = find_directory64(end_at);
    if (!wide) return {end.at, end.bytes, end.records, end_at};
    const bool agree = (end.records == wide->records || end.records == zip::kShortIn64) &&
                       (end.bytes == wide->bytes || end.bytes == zip::kIn64) &&
                       (end.at == wide->at || end.at == zip::kIn64);
    if (!agree) fail("its archive's two end records disagree");
    return *wide;
  }
  std::optional<Directory> find_directory64(uint64_t end_at) const {
    if (end_at < sizeof(zip::Locator64) + sizeof(zip::End64)) return std::nullopt;
    const uint64_t locator_at = end_at - sizeof(zip::Locator64), at = locator_at - sizeof(zip::End64);
    const auto locator = read_at<zip::Locator64>(locator_at);
    if (locator.signature != zip::Locator64::kSignature) return std::nullopt;
    const auto end = read_at<zip::End64>(at);
    if (locator.disk != 0 || locator.at != at || locator.disks > 1 ||
        end.signature != zip::End64::kSignature || end.length != zip::End64::kLength || end.disk != 0 ||
        end.directory_disk != 0 || end.disk_records != end.records)
      no_archive();
    return Directory{end.at, end.bytes, end.records, at};
  }

  // Replaces fields of all ones by the 64-bit values of the extra field.
  void widen(Header& header, std::string_view extra_text, bool with_offset) const {
    Fields extra(archive_.name(), extra_text);
    while (!extra.empty()) {
      const auto kind = extra.next<uint16_t>();
      const auto length = extra.next<uint16_t>();
      Fields wide(archive_.name(), extra.take(length));
      if (kind != zip::Extra64::kKind) continue;
      if (header.bytes == zip::kIn64) header.bytes = wide.next<uint64_t>();
      if (header.packed == zip::kIn64) header.packed = wide.next<uint64_t>();
      if (with_offset && header.at == zip::kIn64) header.at = wide.next<uint64_t>();
      return;
    }
  }
  // The fields that local and central headers share.
  template <typename Packed>
  static Header header_of(const Packed& packed) {
    return {.flags = packed.flags,
            .method = packed.method,
            .crc = packed.crc,
            .packed = packed.packed_bytes,
            .bytes = packed.bytes,
            .name = {}};
  }
  Header central_header(Fields& fields) const {
    const auto central = fields.next<zip::CentralHeader>();
    if (central.signature != zip::CentralHeader::kSignature) fail("its archive's directory is damaged");
    if (central.disk != 0) fail("its archive spans several disks");
    Header header = header_of(central);
    header.at = central.at;
    header.name = fields.take(central.name_bytes);
    widen(header, fields.take(central.extra_bytes), /*with_offset=*/true);
    fields.take(central.comment_bytes);
    return header;
  }

  ZipRecord record(const Header& header, uint64_t end) {
    const std::string who = printable(header.name);
    if (header.method != zip::kStored || header.packed != header.bytes)
      fail("the record '{}' of its archive is compressed; PyTorch stores records plainly", who);
    if (header.flags & ~(zip::kHasDescriptor | zip::kUtf8Name))
      fail("the record '{}' of its archive has the flags {:#x} (encrypted or worse)", who, header.flags);
    if (header.at > end || end - header.at < sizeof(zip::LocalHeader))
      fail("the record '{}' of its archive begins at {}, beyond the records' end at {}", who, header.at, end);
    const uint64_t data = header.at + check_local(header, who, end);
    if (header.bytes > end - data)
      fail("the record '{}' of its archive ends at {}, beyond the records' end at {}", who,
           data + header.bytes, end);
    ranges_.emplace_back(header.at, data + header.bytes);
    return {inner_name(header.name), data, header.bytes, header.crc};
  }
  // Compares the local header with the directory's; returns its length.
  uint64_t check_local(const Header& header, const std::string& who, uint64_t end) const {
    const auto packed = read_at<zip::LocalHeader>(header.at);
    const uint64_t rest_bytes = uint64_t{packed.name_bytes} + packed.extra_bytes;
    const uint64_t length = sizeof(zip::LocalHeader) + rest_bytes;
    if (packed.signature != zip::LocalHeader::kSignature || length > end - header.at)
      fail("the record '{}' of its archive has a damaged header", who);
    const std::string rest = archive_.read_text(header.at + sizeof(zip::LocalHeader), rest_bytes);
    Header local = header_of(packed);
    local.name = std::string_view(rest).substr(0, packed.name_bytes);
    if (local.packed == zip::kIn64 || local.bytes == zip::kIn64)
      widen(local, std::string_view(rest).substr(packed.name_bytes), /*with_offset=*/false);
    // With a descriptor, sizes and checksum follow the data and are 0 here.
    const bool later = header.flags & zip::kHasDescriptor;
    const auto same = [&](uint64_t here, uint64_t there) { return here == there || (later && here == 0); };
    if (local.name != header.name || local.flags != header.flags || local.method != header.method ||
        !same(local.crc, header.crc) || !same(local.packed, header.packed) ||
        !same(local.bytes, header.bytes))
      fail("the two headers of the record '{}' of its archive disagree", who);
    return length;
  }
  // The name without the archive's folder, which is the same for all records.
  std::string inner_name(std::string_view name) {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos || slash == 0 || slash + 1 == name.size() ||
        name.find('\0') != name.npos)
      fail("the record '{}' of its archive is not in a folder", printable(name));
    const std::string inner(name.substr(slash + 1));
    if (folder_.empty()) folder_ = name.substr(0, slash);
    if (folder_ != name.substr(0, slash)) fail("the records of its archive are in several folders");
    if (std::ranges::find(names_, inner) != names_.end())
      fail("its archive has the record '{}' twice", printable(name));
    names_.push_back(inner);
    return inner;
  }
  void check_overlaps() {
    std::ranges::sort(ranges_);
    for (size_t i = 1; i < ranges_.size(); ++i)
      if (ranges_[i].first < ranges_[i - 1].second) fail("the records of its archive overlap");
  }

  ByteSource& archive_;
  std::string folder_;
  std::vector<std::string> names_;
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;
};

void compare_crc(const ByteSource& archive, const ZipRecord& record, uint32_t crc) {
  if (record.crc && crc != record.crc)
    throw_data(
        "{}: the record '{}' (from byte {} of its archive, {} bytes) has the checksum {:08x}, expected "
        "{:08x}: it is damaged",
        archive.name(), printable(record.name), record.data_offset, record.data_bytes, crc, *record.crc);
}

}  // namespace

const ZipRecord* ZipSlice::find(std::string_view name) const {
  const auto found = std::ranges::find(records, name, &ZipRecord::name);
  return found == records.end() ? nullptr : &*found;
}

ZipSlice open_zip(ByteSource& archive) {
  return ZipReader(archive).read();
}

std::string read_record(ByteSource& archive, const ZipRecord& record) {
  std::string text = archive.read_text(record.data_offset, record.data_bytes);
  compare_crc(archive, record, crc32(0, text.data(), text.size()));
  return text;
}

void check_crc(ByteSource& archive, const ZipRecord& record, const ScanBytes& scan) {
  if (!record.crc && !scan) return;
  constexpr uint64_t kPiece = 1 << 20;
  std::string piece(std::min(kPiece, record.data_bytes), '\0');
  uint32_t crc = 0;
  for (uint64_t done = 0; done < record.data_bytes; done += piece.size()) {
    const uint64_t bytes = std::min(kPiece, record.data_bytes - done);
    archive.read(record.data_offset + done, piece.data(), bytes);
    crc = crc32(crc, piece.data(), bytes);
    if (scan) scan(piece.data(), bytes);
  }
  compare_crc(archive, record, crc);
}

}  // namespace hyperion::checkpoint
