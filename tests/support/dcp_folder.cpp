#include "tests/support/dcp_folder.h"

#include <fstream>
#include <span>

#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/format/zip/crc32.h"
#include "tests/support/encode_index.h"
#include "tests/support/memory_source.h"

namespace hyperion::test {

using namespace checkpoint;
namespace {

// The box `chunk` of a row-major tensor, from its own contiguous bytes.
void place(const std::string& piece, const Chunk& chunk, WholeTensor& tensor) {
  const size_t element = size_of(tensor.dtype);
  for_each_run(tensor.shape, {chunk.offset, chunk.shape}, [&](const Run& run) {
    const size_t bytes = static_cast<size_t>(run.count) * element;
    tensor.bytes.replace(static_cast<size_t>(run.in_tensor) * element, bytes, piece,
                         static_cast<size_t>(run.in_box) * element, bytes);
  });
}

size_t bytes_of(Dtype dtype, const Dims& shape) {
  size_t bytes = size_of(dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return bytes;
}

}  // namespace

DcpFolder read_dcp_folder(const std::filesystem::path& folder) {
  const CheckpointIndex index = decode_index(read_file(folder / ".metadata"), folder);
  std::map<std::string, std::string> files;
  const auto entry = [&](const Span& where, auto read) {
    if (!files.contains(where.file)) files[where.file] = read_file(folder / where.file);
    MemorySource file((folder / where.file).string(), std::as_bytes(std::span(files[where.file])));
    SliceSource source(file, where.offset, where.length);
    read(source);
  };
  DcpFolder content;
  content.paths = index.paths;
  for (const auto& [key, record] : index.tensors) {
    WholeTensor tensor{record.dtype, record.shape, std::string(bytes_of(record.dtype, record.shape), '\0')};
    for (const Chunk& chunk : record.chunks) {
      entry(chunk.where, [&](ByteSource& source) {
        const TensorArchive archive = open_tensor_archive(source);
        if (archive.dtype != record.dtype || archive.shape != chunk.shape || !archive.data.crc)
          throw_data("{}: an archive of another dtype or shape than .metadata has, or without a checksum",
                     key);
        check_crc(source, archive.data);
        std::string piece(bytes_of(record.dtype, chunk.shape), '\0');
        read_box(source, archive, whole_box(chunk.shape), piece.data());
        place(piece, chunk, tensor);
      });
    }
    content.tensors.emplace(key, std::move(tensor));
  }
  for (const auto& [key, record] : index.objects)
    entry(record.where,
          [&](ByteSource& source) { content.objects.emplace(key, read_object_archive(source)); });
  return content;
}

void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& content, int shards) {
  std::filesystem::create_directories(folder);
  std::vector<std::string> files(static_cast<size_t>(shards));
  const auto name = [](int shard) { return fmt::format("__{}_0.distcp", shard); };
  CheckpointIndex index;
  index.save_id = "re-encoded";
  index.paths = content.paths;
  int next = 0;
  for (const auto& [key, object] : content.objects) {
    std::string& file = files[static_cast<size_t>(next)];
    const std::string archive = object_archive(object);
    index.objects[key] = {{name(next), file.size(), archive.size()}};
    file += archive;
    next = (next + 1) % shards;
  }
  for (const auto& [key, tensor] : content.tensors) {
    TensorRecord record{tensor.dtype, tensor.shape, {}};
    const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const int64_t each = rows == 0 ? 0 : (rows + shards - 1) / shards;
    const size_t row_bytes = rows == 0 ? 0 : tensor.bytes.size() / static_cast<size_t>(rows);
    for (int shard = 0; shard < shards; ++shard) {
      const int64_t begin = std::min(shard * each, rows), end = std::min(begin + each, rows);
      if (begin == end && shard > 0) continue;
      Chunk chunk{Dims(tensor.shape.size(), 0), tensor.shape, {}};
      if (!tensor.shape.empty()) {
        chunk.offset[0] = begin;
        chunk.shape[0] = end - begin;
      }
      const std::string piece = tensor.bytes.substr(static_cast<size_t>(begin) * row_bytes,
                                                    static_cast<size_t>(end - begin) * row_bytes);
      std::string& file = files[static_cast<size_t>(shard)];
      chunk.where = {name(shard), file.size(), tensor_archive_bytes(tensor.dtype, chunk.shape)};
      file += tensor_archive_head(tensor.dtype, chunk.shape) + piece +
              tensor_archive_tail(tensor.dtype, chunk.shape, crc32(0, piece.data(), piece.size()));
      record.chunks.push_back(std::move(chunk));
    }
    index.tensors.emplace(key, std::move(record));
  }
  for (int shard = 0; shard < shards; ++shard)
    std::ofstream(folder / name(shard), std::ios::binary) << files[static_cast<size_t>(shard)];
  std::ofstream(folder / ".metadata", std::ios::binary) << encode_index(index);
}

}  // namespace hyperion::test
