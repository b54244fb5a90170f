#include "checkpoint/format/zip/zip_slice.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/printable.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/format/zip/zip_layout.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMostRecords = 16;
constexpr uint64_t kMostDirectory = 64 << 10;

// Little-endian fields of a header, one after the other. Reading past the end throws.
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

// One header, as the directory or the record itself gives it.
struct Header {
  uint16_t flags = 0, method = 0;
  uint32_t crc = 0;
  uint64_t packed = 0, bytes = 0, at = 0;  // at: of the local header
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
    if (directory.records > kMostRecords)
      fail("its archive has {} records; at most {} are expected", directory.records, kMostRecords);
    if (directory.bytes > kMostDirectory || directory.bytes > directory.end ||
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
    const auto sums = [](const ZipRecord& record) { return record.crc != 0; };
    const bool summed = std::ranges::any_of(slice.records, sums);
    for (ZipRecord& record : slice.records) record.has_crc = summed;
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

  Directory find_directory() const {
    using namespace zip;
    if (archive_.size() < kEndBytes) no_archive();
    const uint64_t end_at = archive_.size() - kEndBytes;
    const std::string text = archive_.read_text(end_at, kEndBytes);
    Fields fields(archive_.name(), text);
    if (fields.next<uint32_t>() != kEnd) no_archive();
    const auto disk = fields.next<uint16_t>(), directory_disk = fields.next<uint16_t>();
    const auto here = fields.next<uint16_t>(), records = fields.next<uint16_t>();
    const auto bytes = fields.next<uint32_t>(), at = fields.next<uint32_t>();
    if (disk != 0 || directory_disk != 0 || here != records || fields.next<uint16_t>() != 0) no_archive();
    const auto wide = find_directory64(end_at);
    if (!wide) return {at, bytes, records, end_at};
    const bool agree = (records == wide->records || records == kShortIn64) &&
                       (bytes == wide->bytes || bytes == kIn64) && (at == wide->at || at == kIn64);
    if (!agree) fail("its archive's two end records disagree");
    return *wide;
  }
  std::optional<Directory> find_directory64(uint64_t end_at) const {
    using namespace zip;
    if (end_at < kLocator64Bytes + kEnd64Bytes) return std::nullopt;
    const uint64_t locator_at = end_at - kLocator64Bytes, at = locator_at - kEnd64Bytes;
    const std::string text = archive_.read_text(at, kEnd64Bytes + kLocator64Bytes);
    Fields locator(archive_.name(), std::string_view(text).substr(kEnd64Bytes));
    if (locator.next<uint32_t>() != kLocator64) return std::nullopt;
    const auto disk = locator.next<uint32_t>();
    if (disk != 0 || locator.next<uint64_t>() != at || locator.next<uint32_t>() > 1) no_archive();
    Fields fields(archive_.name(), std::string_view(text).substr(0, kEnd64Bytes));
    if (fields.next<uint32_t>() != kEnd64 || fields.next<uint64_t>() != kEnd64Bytes - 12) no_archive();
    fields.take(4);                                  // versions
    if (fields.next<uint64_t>() != 0) no_archive();  // disks
    Directory directory;
    const auto here = fields.next<uint64_t>();
    directory.records = fields.next<uint64_t>();
    directory.bytes = fields.next<uint64_t>();
    directory.at = fields.next<uint64_t>();
    directory.end = at;
    if (here != directory.records) no_archive();
    return directory;
  }

  // Replaces the fields that are all ones by the 64-bit ones of the extra field.
  void widen(Header& header, std::string_view extra_text, bool with_offset) const {
    Fields extra(archive_.name(), extra_text);
    while (!extra.empty()) {
      const auto kind = extra.next<uint16_t>();
      const auto length = extra.next<uint16_t>();
      Fields wide(archive_.name(), extra.take(length));
      if (kind != zip::kExtra64) continue;
      if (header.bytes == zip::kIn64) header.bytes = wide.next<uint64_t>();
      if (header.packed == zip::kIn64) header.packed = wide.next<uint64_t>();
      if (with_offset && header.at == zip::kIn64) header.at = wide.next<uint64_t>();
      return;
    }
  }
  Header central_header(Fields& fields) const {
    if (fields.next<uint32_t>() != zip::kCentralHeader) fail("its archive's directory is damaged");
    fields.take(4);  // versions
    Header header;
    header.flags = fields.next<uint16_t>();
    header.method = fields.next<uint16_t>();
    fields.take(4);  // time
    header.crc = fields.next<uint32_t>();
    header.packed = fields.next<uint32_t>();
    header.bytes = fields.next<uint32_t>();
    const auto name = fields.next<uint16_t>(), extra = fields.next<uint16_t>(),
               comment = fields.next<uint16_t>();
    if (fields.next<uint16_t>() != 0) fail("its archive spans several disks");
    fields.take(6);  // attributes
    header.at = fields.next<uint32_t>();
    header.name = fields.take(name);
    widen(header, fields.take(extra), true);
    fields.take(comment);
    return header;
  }

  ZipRecord record(const Header& header, uint64_t end) {
    const std::string who = printable(header.name);
    if (header.method != zip::kStored || header.packed != header.bytes)
      fail("the record '{}' of its archive is compressed; PyTorch stores records plainly", who);
    if (header.flags & ~(zip::kHasDescriptor | zip::kUtf8Name))
      fail("the record '{}' of its archive has the flags {:#x} (encrypted or worse)", who, header.flags);
    if (header.at > end || end - header.at < zip::kLocalBytes)
      fail("the record '{}' of its archive begins at {}, beyond the records' end at {}", who, header.at, end);
    const uint64_t data = header.at + check_local(header, who, end);
    if (header.bytes > end - data)
      fail("the record '{}' of its archive ends at {}, beyond the records' end at {}", who,
           data + header.bytes, end);
    ranges_.emplace_back(header.at, data + header.bytes);
    return {inner_name(header.name), data, header.bytes, header.crc, false};
  }
  // Compares the local header with the directory's; its length.
  uint64_t check_local(const Header& header, const std::string& who, uint64_t end) const {
    const std::string text = archive_.read_text(header.at, zip::kLocalBytes);
    Fields fields(archive_.name(), text);
    const bool is_header = fields.next<uint32_t>() == zip::kLocalHeader;
    fields.take(2);  // version
    Header local;
    local.flags = fields.next<uint16_t>();
    local.method = fields.next<uint16_t>();
    fields.take(4);  // time
    local.crc = fields.next<uint32_t>();
    local.packed = fields.next<uint32_t>();
    local.bytes = fields.next<uint32_t>();
    const auto name = fields.next<uint16_t>(), extra = fields.next<uint16_t>();
    const uint64_t length = zip::kLocalBytes + name + extra;
    if (!is_header || length > end - header.at)
      fail("the record '{}' of its archive has a damaged header", who);
    const std::string rest = archive_.read_text(header.at + zip::kLocalBytes, uint64_t{name} + extra);
    local.name = std::string_view(rest).substr(0, name);
    if (local.packed == zip::kIn64 || local.bytes == zip::kIn64)
      widen(local, std::string_view(rest).substr(name), false);
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
  if (record.has_crc && crc != record.crc)
    throw_data(
        "{}: the record '{}' (from byte {} of its archive, {} bytes) has the checksum {:08x}, expected "
        "{:08x}: it is damaged",
        archive.name(), printable(record.name), record.data_offset, record.data_bytes, crc, record.crc);
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
  if (!record.has_crc && !scan) return;
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
