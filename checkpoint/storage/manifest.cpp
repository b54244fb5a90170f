#include "checkpoint/storage/manifest.h"

#include <bit>
#include <cerrno>
#include <charconv>
#include <set>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/substitute.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFiles = 1'000'000;
constexpr size_t kMaxTextBytes = size_t{512} << 20;
constexpr size_t kMaxJsonMultiple = 12;              // maximum memory of the values, in sizes of the text
constexpr uint64_t kMaxInteger = uint64_t{1} << 53;  // exact in every JSON reader
constexpr std::string_view kTail = "\"\n}\n";        // after the checksum's digits
static_assert(std::endian::native == std::endian::little, "block hashes are hashed as they lie in memory");

std::string hex(uint64_t value) {
  return fmt::format("{:016x}", value);
}

uint64_t from_hex(std::string_view digits, const std::string& where) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 16 || error != std::errc() || end != digits.data() + digits.size() ||
      hex(value) != digits)
    throw_data("{}: \"{:.40}\" is not a hash of 16 hexadecimal digits", where, digits);
  return value;
}

Json record_to_json(const FileRecord& record) {
  std::string blocks;
  blocks.reserve(record.blocks.size() * 16);
  for (const uint64_t block : record.blocks) blocks += hex(block);
  return {{"name", record.name},
          {"bytes", record.bytes},
          {"checksum", hex(record.checksum())},
          {"blocks", blocks}};
}

FileRecord record_from_json(const JsonNode& node) {
  const std::string& where = node.where();
  FileRecord record;
  record.name = node["name"].text();
  if (!is_plain_name(record.name))
    throw_data("{}: \"{:.100}\" is not the name of a file", where, printable(record.name));
  record.bytes = node["bytes"].count(0, kMaxInteger);
  const std::string& blocks = node["blocks"].text();
  const uint64_t expected = (record.bytes + kBlockBytes - 1) / kBlockBytes;
  if (blocks.size() % 16 != 0 || blocks.size() / 16 != expected)
    throw_data("{}: file {} of {} bytes has {} block hashes, expected {}", where, record.name, record.bytes,
               blocks.size() / 16, expected);
  record.blocks.reserve(expected);
  for (size_t at = 0; at < blocks.size(); at += 16)
    record.blocks.push_back(from_hex(std::string_view(blocks).substr(at, 16), where));
  if (from_hex(node["checksum"].text(), where) != record.checksum())
    throw_data("{}: the checksum of file {} does not belong to its blocks", where, record.name);
  return record;
}

CheckpointKind kind_of(const JsonNode& node) {
  const auto kind = choice_of<CheckpointKind>(node.text());
  if (!kind || *kind > CheckpointKind::kPreCheckpoint)
    throw_data("{} \"{:.40}\" is none of a checkpoint: load it with the program that wrote it", node.where(),
               printable(node.text()));
  return *kind;
}

// The digits precede kTail and cover everything before them.
void check_own_checksum(std::string_view text, const JsonNode& root) {
  const std::string& checksum = root["checksum"].text();
  const size_t tail = 16 + kTail.size();
  const bool fits = text.size() > tail && text.ends_with(kTail) &&
                    text.substr(text.size() - tail, 16) == checksum &&
                    hex(hash_text(text.substr(0, text.size() - tail))) == checksum;
  if (!fits) throw_data("{}: is damaged: its content does not have the checksum it ends with", root.where());
}

}  // namespace

uint64_t FileRecord::checksum() const {
  return hash_bytes(blocks.data(), blocks.size() * sizeof(uint64_t));
}

std::string to_json(const Manifest& manifest) {
  Json json = {{"format_version", manifest.format_version},
               {"save_id", manifest.save_id},
               {"step", manifest.step},
               {"world_size", manifest.world_size},
               {"kind", text_of(manifest.kind)},
               {"config_hash", manifest.config_hash},
               {"writer", manifest.writer},
               {"unix_time", manifest.unix_time},
               {"block_bytes", kBlockBytes},
               {"facts", manifest.facts},
               {"files", Json::array()}};
  for (const FileRecord& record : manifest.files) json["files"].push_back(record_to_json(record));
  std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace);  // facts may be any bytes
  text.resize(text.size() - 2);                                                 // "\n}"
  text += ",\n \"checksum\": \"";
  text += hex(hash_text(text));
  return text += kTail;
}

Manifest manifest_from_json(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name, 8, kMaxJsonMultiple);
  const JsonNode root(json, name);
  if (const uint64_t version = root["format_version"].count(1, kMaxInteger); version > kManifestVersion)
    throw_data(
        "{}: has format version {}, this program reads versions up to {}: load the checkpoint with the newer "
        "program that wrote it",
        name, version, kManifestVersion);
  check_own_checksum(text, root);
  Manifest manifest;
  manifest.save_id = root["save_id"].text();
  manifest.step = static_cast<int64_t>(root["step"].count(0, kMaxInteger));
  manifest.world_size = static_cast<int>(root["world_size"].count(1, 10'000'000));
  manifest.kind = kind_of(root["kind"]);
  manifest.config_hash = root["config_hash"].text();
  manifest.writer = root["writer"].text();
  manifest.unix_time = static_cast<int64_t>(root["unix_time"].count(0, kMaxInteger));
  root["block_bytes"].count(kBlockBytes, kBlockBytes);
  for (const auto& [key, value] : root["facts"].object().items())
    manifest.facts[key] = JsonNode(value, name + ".facts").text();
  if (root["files"].array().size() > kMaxFiles) throw_data("{}: lists more than {} files", name, kMaxFiles);
  std::set<std::string> names;
  root["files"].each([&](const JsonNode& file) {
    manifest.files.push_back(record_from_json(file));
    if (!names.insert(manifest.files.back().name).second)
      throw_data("{}: lists file {} twice", name, printable(manifest.files.back().name));
  });
  return manifest;
}

std::string read_manifest_text(const fs::path& folder) {
  return read_file(folder / kManifestFile, kMaxTextBytes, Links::kRefuse);
}

Manifest read_manifest(const fs::path& folder) {
  return manifest_from_json(read_manifest_text(folder), printable(folder / kManifestFile));
}

void check_sizes(const fs::path& folder, const Manifest& manifest) {
  for (const FileRecord& record : manifest.files) {
    const fs::path path = folder / record.name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0)
      throw_data("{}: is missing or cannot be read: {}; the checkpoint is incomplete", printable(path),
                 errno_text(errno));
    if (S_ISLNK(info.st_mode)) throw_data("{}: is a symbolic link, not a regular file", printable(path));
    if (!S_ISREG(info.st_mode)) InputFile{path};  // throws naming what it is
    if (static_cast<uint64_t>(info.st_size) != record.bytes) {
      const std::string what =
          substitute_of(InputFile(path, Links::kRefuse), /*text=*/!record.name.ends_with(".safetensors"));
      if (!what.empty()) throw_data("{}: {}", printable(path), what);
      throw_data("{}: has {} bytes, {} were written: the file was truncated or replaced", printable(path),
                 info.st_size, record.bytes);
    }
  }
}

}  // namespace hyperion::checkpoint
