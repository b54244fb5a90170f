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

// The file, piece by piece.
class Input {
 public:
  explicit Input(const InputFile& file) : file_(file), name_(printable(file.path())) {}
  const std::string& name() const { return name_; }
  // Reads the next piece. Empty at the file's end.
  std::string_view next() {
    piece_.resize(std::min<uint64_t>(kPiece, file_.size() - at_));
    file_.read(at_, piece_.data(), piece_.size());
    at_ += piece_.size();
    return piece_;
  }

 private:
  static constexpr uint64_t kPiece = uint64_t{1} << 20;
  const InputFile& file_;
  std::string name_, piece_;
  uint64_t at_ = 0;
};

// Grows the text by half where it is full, up to the limit.
class Output {
 public:
  Output(const Input& input, uint64_t compressed, uint64_t limit) : input_(input), limit_(limit) {
    text_.reserve(std::min(limit, std::max<uint64_t>(compressed * 4, uint64_t{1} << 16)));
  }
  char* tail() {
    if (text_.free_bytes() == 0) {
      if (text_.capacity() >= limit_)
        throw_data(
            "{}: decompresses to more than {} bytes, the most for a file of its size (docs/limits.md): split "
            "it, or give it decompressed",
            input_.name(), limit_);
      text_.reserve(std::min(limit_, text_.capacity() + text_.capacity() / 2 + 1));
    }
    return text_.end();
  }
  size_t free_bytes() const { return text_.free_bytes(); }
  void advance(size_t n) { text_.advance(n); }
  uint64_t size() const { return text_.view().size(); }
  InflatedText finish() { return std::move(text_); }

 private:
  const Input& input_;
  uint64_t limit_;
  InflatedText text_;
};

// `wanted`: ends once that many bytes are there.
InflatedText inflate_all(const InputFile& file, uint64_t limit, uint64_t wanted = UINT64_MAX) {
  constexpr size_t kMaxChunk = size_t{1} << 30;  // zlib counts in 32 bits
  Input input(file);
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw_bug("zlib could not be initialised for {}", input.name());
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  Output output(input, file.size(), limit);
  uint64_t done = 0;
  bool inside = true;  // a member that has not ended
  const auto refill = [&] {
    if (stream.avail_in > 0) return;
    const std::string_view piece = input.next();
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    stream.avail_in = static_cast<uInt>(piece.size());
  };
  for (refill(); inside || stream.avail_in > 0; refill()) {
    stream.next_out = reinterpret_cast<Bytef*>(output.tail());
    const size_t offered_in = stream.avail_in, offered_out = std::min(output.free_bytes(), kMaxChunk);
    stream.avail_out = static_cast<uInt>(offered_out);
    const int status = inflate(&stream, Z_NO_FLUSH);
    done += offered_in - stream.avail_in;
    const size_t produced = offered_out - stream.avail_out;
    output.advance(produced);
    if (output.size() >= wanted) break;
    if (status == Z_STREAM_END) {
      inside = false;
      if (done < file.size()) inside = inflateReset(&stream) == Z_OK;  // the next member
    } else if (status == Z_OK || status == Z_BUF_ERROR) {
      if (done == file.size() && produced < offered_out)
        throw_data("{}: the gzip data ends early after {} bytes: download or compress the file again",
                   input.name(), done);
    } else {
      throw_data("{}: damaged gzip data near byte {} ({}): download or compress the file again", input.name(),
                 done, stream.msg != nullptr ? stream.msg : "unknown");
    }
  }
  return output.finish();
}

InflatedText unzstd_all(const InputFile& file, uint64_t limit, uint64_t wanted = UINT64_MAX) {
  Input input(file);
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw_bug("zstd could not be initialised for {}", input.name());
  Output output(input, file.size(), limit);
  ZSTD_inBuffer in{nullptr, 0, 0};
  uint64_t done = 0;
  for (size_t pending = 1; pending != 0 || done < file.size();) {
    if (in.pos == in.size) {
      const std::string_view piece = input.next();
      in = {piece.data(), piece.size(), 0};
    }
    const size_t before = in.pos;
    char* tail = output.tail();
    ZSTD_outBuffer out{tail, output.free_bytes(), 0};
    pending = ZSTD_decompressStream(stream.get(), &out, &in);
    done += in.pos - before;
    if (ZSTD_isError(pending)) {
      throw_data("{}: damaged zstd data near byte {} ({}): download or compress the file again", input.name(),
                 done, ZSTD_getErrorName(pending));
    }
    output.advance(out.pos);
    if (output.size() >= wanted) break;
    if (pending != 0 && done == file.size() && out.pos < out.size)
      throw_data("{}: the zstd data ends early after {} bytes: download or compress the file again",
                 input.name(), file.size());
  }
  return output.finish();
}

}  // namespace

InflatedText::~InflatedText() {
  if (data_ != nullptr) ::munmap(data_, capacity_);
}

void InflatedText::reserve(uint64_t bytes) {
  void* const place = data_ == nullptr
                          ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : ::mremap(data_, capacity_, bytes, MREMAP_MAYMOVE);
  if (place == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(place);
  capacity_ = bytes;
}

Compression detect_compression(const InputFile& file) {
  const FileFormat* format = format_of(file);
  if (format == nullptr || format->use != FormatUse::kCompressed) return Compression::kNone;
  return format->name == "gzip" ? Compression::kGzip : Compression::kZstd;
}

uint64_t inflation_limit(uint64_t compressed) {
  return std::clamp(compressed * 64, uint64_t{256} << 20, uint64_t{64} << 30);
}

InflatedText decompress(const InputFile& file, Compression compression, uint64_t limit) {
  return compression == Compression::kGzip ? inflate_all(file, limit) : unzstd_all(file, limit);
}

InflatedText decompress_begin(const InputFile& file, Compression compression, uint64_t size) {
  if (compression == Compression::kGzip) return inflate_all(file, size, size);
  if (compression == Compression::kZstd) return unzstd_all(file, size, size);
  InflatedText text;
  const uint64_t bytes = std::min(size, file.size());
  if (bytes == 0) return text;
  text.reserve(bytes);
  file.read(0, text.end(), bytes);
  text.advance(bytes);
  return text;
}

}  // namespace hyperion::data
