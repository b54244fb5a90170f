#include "event_reader.h"

#include <cstring>
#include <stdexcept>
#include <string_view>

#include "base/files.h"

namespace hyperion::metrics {

namespace {

// Bit by bit, unlike the writer's table.
uint32_t slow_masked_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }
  std::string_view take(size_t size) {
    if (size > bytes_.size()) throw std::runtime_error("event file ends inside a field");
    const std::string_view out = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return out;
  }
  template <typename T>
  T raw() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("varint is too long");
  }

 private:
  std::string_view bytes_;
};

// Calls visit(field, wire type, reader) for each field; visit consumes the content.
template <typename Visit>
void each_field(std::string_view message, Visit visit) {
  Reader reader(message);
  while (!reader.done()) {
    const uint64_t key = reader.varint();
    visit(key >> 3, key & 7, reader);
  }
}
std::string_view bytes_of(Reader& reader) {
  return reader.take(reader.varint());
}
[[noreturn]] void unexpected() {
  throw std::runtime_error("unexpected field");
}

void read_value(std::string_view message, ReadEvent& event) {
  each_field(message, [&](uint64_t field, uint64_t type, Reader& in) {
    if (field == 1 && type == 2) {
      event.tag = bytes_of(in);
    } else if (field == 2 && type == 5) {
      event.value = in.raw<float>();
    } else if (field == 8 && type == 2) {
      each_field(bytes_of(in), [&](uint64_t part, uint64_t kind, Reader& tensor) {
        if (part == 8 && kind == 2)
          event.text = bytes_of(tensor);
        else if (part == 2 && kind == 2)
          bytes_of(tensor);
        else if (part == 1 && kind == 0 && tensor.varint() == 7)
          return;
        else
          unexpected();
      });
    } else if (field == 9 && type == 2) {
      each_field(bytes_of(in), [&](uint64_t, uint64_t, Reader& metadata) {
        each_field(bytes_of(metadata),
                   [&](uint64_t, uint64_t, Reader& data) { event.plugin = bytes_of(data); });
      });
    } else {
      unexpected();
    }
  });
}

ReadEvent read_event(std::string_view message) {
  ReadEvent event;
  each_field(message, [&](uint64_t field, uint64_t type, Reader& in) {
    if (field == 1 && type == 1)
      event.wall_time = in.raw<double>();
    else if (field == 2 && type == 0)
      event.step = static_cast<int64_t>(in.varint());
    else if (field == 3 && type == 2)
      event.file_version = bytes_of(in);
    else if (field == 5 && type == 2)
      each_field(bytes_of(in),
                 [&](uint64_t, uint64_t, Reader& summary) { read_value(bytes_of(summary), event); });
    else
      unexpected();
  });
  return event;
}

}  // namespace

std::vector<ReadEvent> read_events(const std::filesystem::path& file) {
  const std::string content = read_file(file);
  std::vector<ReadEvent> events;
  Reader reader(content);
  while (!reader.done()) {
    const std::string_view length = reader.take(8);
    uint64_t size = 0;
    std::memcpy(&size, length.data(), sizeof size);
    if (reader.raw<uint32_t>() != slow_masked_crc(length))
      throw std::runtime_error("bad checksum of a length");
    const std::string_view payload = reader.take(size);
    if (reader.raw<uint32_t>() != slow_masked_crc(payload))
      throw std::runtime_error("bad checksum of a payload");
    events.push_back(read_event(payload));
  }
  return events;
}

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (!found.empty()) throw std::runtime_error("more than one file in " + folder.string());
    found = entry.path();
  }
  if (found.empty()) throw std::runtime_error("no file in " + folder.string());
  return found;
}

}  // namespace hyperion::metrics
