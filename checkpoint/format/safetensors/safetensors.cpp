#include "checkpoint/format/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <fmt/ranges.h>

#include "base/files.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/substitute.h"
#include "checkpoint/format/metadata_tiling.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor bytes are little-endian");

constexpr size_t kMaxDimensions = 64;
constexpr size_t kMaxJsonMultiple = 12;  // maximum memory of the values, in sizes of the text

// A list of whole numbers from 0 to INT64_MAX.
Dims read_dims(const json& list, const std::string& where) {
  if (!list.is_array() || list.size() > kMaxDimensions)
    throw_data("{}: expected a list of at most {} whole numbers", where, kMaxDimensions);
  Dims dims;
  for (const json& value : list) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
      throw_data("{}: expected whole numbers from 0 to 2^63-1, not {:.60}", where, value.dump());
    dims.push_back(value.get<int64_t>());
  }
  return dims;
}

// The number of elements of `shape` times `bytes`. Any product of extents must fit, even if a later extent
// is 0.
uint64_t bytes_of(const Dims& shape, uint64_t bytes, const std::string& where) {
  uint64_t product = bytes;
  bool empty = false;
  for (const int64_t extent : shape) {
    empty |= extent == 0;
    if (extent != 0 && __builtin_mul_overflow(product, static_cast<uint64_t>(extent), &product))
      throw_data("{}: shape [{}] does not fit into 64 bits", where, fmt::join(shape, ", "));
  }
  return empty ? 0 : product;
}

SafetensorsHeader::Tensor read_tensor(const json& entry, uint64_t data, const std::string& where) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets"))
    throw_data("{}: expected exactly dtype, shape and data_offsets", where);
  const json& name = entry["dtype"];
  const auto dtype = name.is_string()
                         ? find_dtype(name.get_ref<const std::string&>(), &DtypeTraits::safetensors)
                         : std::nullopt;
  if (!dtype) throw_data("{}: dtype {:.60} is not known", where, name.dump());
  const Dims offsets = read_dims(entry["data_offsets"], where + ".data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    throw_data("{}: data_offsets [{}] are not a begin and an end", where, fmt::join(offsets, ", "));
  SafetensorsHeader::Tensor tensor{*dtype, read_dims(entry["shape"], where + ".shape"), 0, 0};
  tensor.bytes = bytes_of(tensor.shape, size_of(*dtype), where);
  if (tensor.bytes != static_cast<uint64_t>(offsets[1] - offsets[0]))
    throw_data("{}: data_offsets [{}] hold {} bytes, but {} of shape [{}] have {}", where,
               fmt::join(offsets, ", "), offsets[1] - offsets[0], traits_of(*dtype).safetensors,
               fmt::join(tensor.shape, ", "), tensor.bytes);
  tensor.offset = data + static_cast<uint64_t>(offsets[0]);  // data <= 10^8 + 8 and an int64: no overflow
  return tensor;
}

// Checks that the tensors fill the range from `data` to the file's end.
void check_coverage(const SafetensorsHeader& header, uint64_t data, const ByteSource& file) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // begin, end
  for (const auto& [name, tensor] : header.tensors)
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  std::sort(ranges.begin(), ranges.end());
  uint64_t end = data;
  for (const auto& range : ranges) {
    if (range.first != end)
      throw_data("{}: its tensors {} at byte {} of the data", file.name(),
                 range.first > end ? "leave a hole" : "overlap", std::min(range.first, end) - data);
    end = range.second;
  }
  if (end != file.size())
    throw_data("{}: its tensors end at byte {}, but the file has {}: {}", file.name(), end, file.size(),
               end > file.size() ? "it is cut short" : "bytes follow that belong to no tensor");
}

// A file on disk that is opened once and read in pieces.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const fs::path& path) : name_(printable(path)), file_(path) {}
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return file_.size(); }
  void read(uint64_t offset, void* out, uint64_t bytes) override {
    require_inside(offset, bytes);
    file_.read(offset, out, bytes);
  }

 private:
  std::string name_;
  InputFile file_;
};

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

WeightMap read_weight_map(const fs::path& path) {
  const json index = parse_json(read_file(path, kMaxSafetensorsHeader), path.string(), 32, kMaxJsonMultiple);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw_data("{}: has no table weight_map", path.string());
  WeightMap map;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    if (!is_plain_name(text))
      throw_data("{}: weight_map[\"{:.100}\"] is {:.100}, expected the name of a file in the same folder",
                 path.string(), name, file.dump());
    map.emplace(name, text);
  }
  return map;
}

// The offset in the global tensor of each tensor in a file that torch's writer sharded; empty for other
// files.
std::map<std::string, Dims> saved_offsets(const SafetensorsHeader& header, const std::string& file) {
  std::map<std::string, Dims> offsets;
  const auto info = header.metadata.find("DCP_SHARDING_INFO");
  if (info == header.metadata.end()) return offsets;
  const std::string where = file + ": DCP_SHARDING_INFO";
  const json table = parse_json(info->second, where, 4, kMaxJsonMultiple);
  if (!table.is_object()) throw_data("{}: expected a table", where);
  for (const auto& [name, entry] : table.items()) {
    if (!entry.is_object() || !entry.contains("saved_offsets"))
      throw_data("{}[\"{:.100}\"]: has no saved_offsets", where, name);
    offsets[name] = read_dims(entry["saved_offsets"], where);
  }
  for (const auto& [name, tensor] : header.tensors)
    if (!offsets.contains(name) || offsets[name].size() != tensor.shape.size())
      throw_data("{}: has no offsets of {} dimensions for tensor \"{:.100}\"", where, tensor.shape.size(),
                 name);
  return offsets;
}

// Adds one shard; the tensor extends to the farthest end of its shards.
void add_chunk(TensorRecord& record, const SafetensorsHeader::Tensor& shard, Dims offset,
               const std::string& file, const std::string& where) {
  if (record.chunks.empty()) {
    record.dtype = shard.dtype;
    record.shape.assign(shard.shape.size(), 0);
  }
  if (record.dtype != shard.dtype || record.shape.size() != shard.shape.size())
    throw_data("{}: its shards differ in dtype or number of dimensions", where);
  for (size_t d = 0; d < offset.size(); ++d) {
    int64_t end = 0;
    if (__builtin_add_overflow(offset[d], shard.shape[d], &end))
      throw_data("{}: a shard ends beyond 2^63 in dimension {}", where, d);
    record.shape[d] = std::max(record.shape[d], end);
  }
  record.chunks.push_back({std::move(offset), shard.shape, {file, shard.offset, shard.bytes}});
}

void add_file(CheckpointIndex& index, const fs::path& folder, const std::string& file, const WeightMap* map) {
  FileSource source(folder / file);
  const SafetensorsHeader header = read_safetensors_header(source);
  const auto offsets = saved_offsets(header, source.name());
  index.notes.insert(header.metadata.begin(), header.metadata.end());
  for (const auto& [name, tensor] : header.tensors) {
    if (map != nullptr) {
      const auto named = map->find(name);
      if (named == map->end())
        throw_data("{}: holds tensor \"{:.100}\", which {} does not name", source.name(), name,
                   kSafetensorsIndex);
      if (named->second != file)
        throw_data("{}: holds tensor \"{:.100}\", which {} puts into {}", source.name(), name,
                   kSafetensorsIndex, named->second);
    }
    TensorRecord& record = index.tensors[name];
    if (!record.chunks.empty() && offsets.empty())
      throw_data("{}: holds tensor \"{:.100}\", and so does {}", source.name(), name,
                 record.chunks[0].where.file);
    const auto offset = offsets.find(name);
    add_chunk(record, tensor, offset == offsets.end() ? Dims(tensor.shape.size(), 0) : offset->second, file,
              fmt::format("{}: tensor \"{:.100}\"", source.name(), name));
  }
}

CheckpointIndex read_indexed(const fs::path& folder) {
  const WeightMap map = read_weight_map(folder / kSafetensorsIndex);
  std::map<std::string, std::string> files;  // file -> one of its tensors
  for (const auto& [name, file] : map) files.emplace(file, name);
  CheckpointIndex index;
  for (const auto& [file, tensor] : files) {
    if (!name_exists(folder / file))
      throw_data("{}: puts tensor \"{:.100}\" into {}, which is not there",
                 (folder / kSafetensorsIndex).string(), tensor, file);
    add_file(index, folder, file, &map);
  }
  for (const auto& [name, file] : map)
    if (!index.tensors.contains(name))
      throw_data("{}: does not hold tensor \"{:.100}\", which {} puts into it", (folder / file).string(),
                 name, kSafetensorsIndex);
  return index;
}

std::vector<std::string> safetensors_files(const fs::path& folder) {
  std::vector<std::string> files;
  for (const fs::path& entry : list_folder(folder))
    if (entry.extension() == ".safetensors" && !entry.filename().native().starts_with('.'))
      files.push_back(entry.filename().string());
  return files;
}

CheckpointIndex read_listed(const fs::path& folder) {
  const std::vector<std::string> files = safetensors_files(folder);
  if (files.empty())
    throw_data("{}: has neither {} nor {} nor another *.safetensors file", folder.string(), kSafetensorsFile,
               kSafetensorsIndex);
  CheckpointIndex index;
  for (const std::string& file : files) add_file(index, folder, file, nullptr);
  return index;
}

}  // namespace

SafetensorsHeader read_safetensors_header(ByteSource& file) {
  uint64_t length = 0;
  if (file.size() < sizeof length)
    throw_data("{}: is {} bytes, too few for a safetensors file", file.name(), file.size());
  file.read(0, &length, sizeof length);
  const bool fits = length <= kMaxSafetensorsHeader && length <= file.size() - sizeof length;
  const std::string what =
      fits ? "" : substitute_of(file.read_text(0, std::min<uint64_t>(kSubstituteBytes, file.size())));
  if (!what.empty()) throw_data("{}: {}", file.name(), what);
  if (!fits)
    throw_data(
        "{}: says that its header has {} bytes, expected at most {}: it is cut short or no safetensors file",
        file.name(), length, std::min(kMaxSafetensorsHeader, file.size() - sizeof length));
  std::string text = file.read_text(sizeof length, length);
  if (!text.starts_with('{')) throw_data("{}: its header does not begin with {{", file.name());
  const json table = parse_json(text, file.name() + ": its header", 4, kMaxJsonMultiple);
  text = {};
  const uint64_t data = sizeof length + length;
  SafetensorsHeader header;
  for (const auto& [name, entry] : table.items()) {
    if (name != "__metadata__") {
      header.tensors[name] =
          read_tensor(entry, data, fmt::format("{}: tensor \"{:.100}\"", file.name(), name));
      continue;
    }
    if (!entry.is_object()) throw_data("{}: __metadata__ is not a table of texts", file.name());
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) throw_data("{}: __metadata__[\"{:.100}\"] is not a text", file.name(), key);
      header.metadata[key] = value.get<std::string>();
    }
  }
  check_coverage(header, data, file);
  return header;
}

CheckpointIndex read_safetensors(const fs::path& path) {
  CheckpointIndex index;
  if (!is_folder(path))
    add_file(index, path.parent_path(), path.filename().string(), nullptr);
  else if (name_exists(path / kSafetensorsFile))
    add_file(index, path, kSafetensorsFile, nullptr);
  else
    index = name_exists(path / kSafetensorsIndex) ? read_indexed(path) : read_listed(path);
  for (const auto& [name, record] : index.tensors)
    check_tiling(fmt::format("{}: tensor \"{:.100}\"", path.string(), name), record);
  index.layout = CheckpointIndex::Layout::kBareBytes;
  return index;
}

}  // namespace hyperion::checkpoint
