#include "data/decompress.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>

#include <sys/mman.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/printable.h"
#include "data/file_formats.h"

namespace hyperion::data {
namespace {

// The result of one call of a library's decoder.
struct DecoderStep {
  size_t consumed, produced;  // bytes
  bool at_end = false;        // at the end of a gzip member or zstd frame
  const char* damage = nullptr;
};

// `decode(in, out, room)` decodes some of `in` to `out`, which has `room` bytes.
template <typename Decode>
InflatedText decode_all(const InputFile& file, std::string_view format, uint64_t limit, uint64_t wanted,
                        const Decode& decode) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  constexpr size_t kMaxRoom = size_t{1} << 30;  // zlib counts in 32 bits
  const std::string name = printable(file.path());
  InflatedText text;
  text.reserve(std::min(limit, std::max<uint64_t>(file.size() * 4, uint64_t{1} << 16)));
  std::string piece;
  std::string_view in;
  uint64_t done = 0;
  for (bool inside = true; inside || done < file.size();) {
    if (in.empty()) {
      piece.resize(std::min(kPiece, file.size() - done));
      file.read(done, piece.data(), piece.size());
      in = piece;
    }
    if (text.free_bytes() == 0) {
      if (text.capacity() >= limit)
        throw_data(
            "{}: decompresses to more than {} bytes, the most for a file of its size (docs/limits.md): split "
            "it, or give it decompressed",
            name, limit);
      text.reserve(std::min(limit, text.capacity() + text.capacity() / 2 + 1));
    }
    const size_t room = std::min(text.free_bytes(), kMaxRoom);
    const DecoderStep step = decode(in, text.end(), room);
    done += step.consumed;
    in.remove_prefix(step.consumed);
    if (step.damage != nullptr)
      throw_data("{}: damaged {} data near byte {} ({}): download or compress the file again", name, format,
                 done, step.damage);
    text.advance(step.produced);
    if (text.view().size() >= wanted) break;
    inside = !step.at_end;
    if (inside && done == file.size() && step.produced < room)
      throw_data("{}: the {} data ends early after {} bytes: download or compress the file again", name,
                 format, done);
  }
  return text;
}

InflatedText decompress_gzip(const InputFile& file, uint64_t limit, uint64_t wanted) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw_bug("zlib could not be initialised");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  bool in_member = true;
  return decode_all(file, "gzip", limit, wanted, [&](std::string_view in, char* out, size_t room) {
    // Zero bytes after a member are padding, as for gzip itself.
    if (const size_t padding = std::min(in.find_first_not_of('\0'), in.size()); !in_member && padding > 0)
      return DecoderStep{padding, 0, true};
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream.avail_in = static_cast<uInt>(in.size());
    stream.next_out = reinterpret_cast<Bytef*>(out);
    stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&stream, Z_NO_FLUSH);
    DecoderStep step{in.size() - stream.avail_in, room - stream.avail_out};
    step.at_end = status == Z_STREAM_END && inflateReset(&stream) == Z_OK;  // for the next member
    in_member = !step.at_end;
    if (!step.at_end && status != Z_OK && status != Z_BUF_ERROR)
      step.damage = stream.msg != nullptr ? stream.msg : "unknown";
    return step;
  });
}

InflatedText decompress_zstd(const InputFile& file, uint64_t limit, uint64_t wanted) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw_bug("zstd could not be initialised");
  return decode_all(file, "zstd", limit, wanted, [&](std::string_view data, char* tail, size_t room) {
    ZSTD_inBuffer in{data.data(), data.size(), 0};
    ZSTD_outBuffer out{tail, room, 0};
    const size_t pending = ZSTD_decompressStream(stream.get(), &out, &in);
    return DecoderStep{in.pos, out.pos, pending == 0,
                       ZSTD_isError(pending) ? ZSTD_getErrorName(pending) : nullptr};
  });
}

// Null for text.
const FileFormat* compression_of(const InputFile& file) {
  const FileFormat* format = format_of(file);
  return format != nullptr && format->use == FormatUse::kCompressed ? format : nullptr;
}

}  // namespace

InflatedText::~InflatedText() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

void InflatedText::reserve(uint64_t bytes) {
  void* const pages = data_ == nullptr
                          ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : ::mremap(data_, capacity_, bytes, MREMAP_MAYMOVE);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(pages);
  capacity_ = bytes;
}

bool is_compressed(const InputFile& file) {
  return compression_of(file) != nullptr;
}

uint64_t inflation_limit(uint64_t compressed) {
  return std::clamp(compressed * 64, uint64_t{256} << 20, uint64_t{64} << 30);
}

InflatedText decompress(const InputFile& file, uint64_t limit, uint64_t wanted) {
  const FileFormat* format = compression_of(file);
  if (format == nullptr) throw_bug("decompress: {} is not compressed", file.path().string());
  return format->name == "gzip" ? decompress_gzip(file, limit, wanted) : decompress_zstd(file, limit, wanted);
}

InflatedText read_begin(const InputFile& file, uint64_t size) {
  if (is_compressed(file)) return decompress(file, size, size);
  InflatedText text;
  const uint64_t bytes = std::min(size, file.size());
  if (bytes == 0) return text;
  text.reserve(bytes);
  file.read(0, text.end(), bytes);
  text.advance(bytes);
  return text;
}

}  // namespace hyperion::data
