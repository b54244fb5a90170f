#include "data/decompress.h"

#include <algorithm>

#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/printable.h"
#include "data/file_formats.h"

namespace hyperion::data {
namespace {

constexpr uint64_t kPiece = uint64_t{256} << 10;  // of a file
constexpr size_t kMaxRoom = size_t{1} << 30;      // zlib counts in 32 bits

// The result of one call of a library's decoder.
struct DecoderStep {
  size_t consumed, produced;  // bytes
  bool at_end = false;        // at the end of a gzip member or zstd frame
  const char* damage = nullptr;
};

// Null for text.
const FileFormat* compression_of(const InputFile& file) {
  const FileFormat* format = format_of(file);
  return format != nullptr && format->use == FormatUse::kCompressed ? format : nullptr;
}

}  // namespace

struct InflatedStream::Decoder {
  virtual ~Decoder() = default;
  virtual std::string_view format() const = 0;
  // Decodes some of `in` to `out`, which has `room` bytes.
  virtual DecoderStep decode(std::string_view in, char* out, size_t room) = 0;
};

struct InflatedStream::Gzip : Decoder {
  Gzip() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) throw_bug("zlib could not be initialised");
  }
  ~Gzip() override { inflateEnd(&stream); }
  std::string_view format() const override { return "gzip"; }
  DecoderStep decode(std::string_view in, char* out, size_t room) override {
    // Zero bytes after a member are padding, as for gzip itself.
    if (const size_t padding = std::min(in.find_first_not_of('\0'), in.size()); !in_member && padding > 0)
      return DecoderStep{padding, 0, true};
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream.avail_in = static_cast<uInt>(in.size());
    stream.next_out = reinterpret_cast<Bytef*>(out);
    stream.avail_out = static_cast<uInt>(room);
    const int status = ::inflate(&stream, Z_NO_FLUSH);
    DecoderStep step{in.size() - stream.avail_in, room - stream.avail_out};
    step.at_end = status == Z_STREAM_END && inflateReset(&stream) == Z_OK;  // for the next member
    in_member = !step.at_end;
    if (!step.at_end && status != Z_OK && status != Z_BUF_ERROR)
      step.damage = stream.msg != nullptr ? stream.msg : "unknown";
    return step;
  }

  z_stream stream{};
  bool in_member = true;
};

struct InflatedStream::Zstd : Decoder {
  Zstd() {
    if (!stream) throw_bug("zstd could not be initialised");
  }
  std::string_view format() const override { return "zstd"; }
  DecoderStep decode(std::string_view data, char* tail, size_t room) override {
    ZSTD_inBuffer in{data.data(), data.size(), 0};
    ZSTD_outBuffer out{tail, room, 0};
    const size_t pending = ZSTD_decompressStream(stream.get(), &out, &in);
    return DecoderStep{in.pos, out.pos, pending == 0,
                       ZSTD_isError(pending) ? ZSTD_getErrorName(pending) : nullptr};
  }

  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream{ZSTD_createDStream(), ZSTD_freeDStream};
};

bool is_compressed(const InputFile& file) {
  return compression_of(file) != nullptr;
}

uint64_t inflation_limit(uint64_t compressed) {
  return std::clamp(compressed * 64, uint64_t{256} << 20, uint64_t{64} << 30);
}

InflatedStream::InflatedStream(const InputFile& file, uint64_t limit) : file_(file), limit_(limit) {
  const FileFormat* format = compression_of(file);
  if (format == nullptr) throw_bug("InflatedStream: {} is not compressed", file.path().string());
  if (format->name == "gzip")
    decoder_ = std::make_unique<Gzip>();
  else
    decoder_ = std::make_unique<Zstd>();
}

InflatedStream::~InflatedStream() = default;

size_t InflatedStream::read(char* out, size_t bytes) {
  size_t done = 0;
  while (done < bytes && (inside_ || consumed_ < file_.size())) {
    if (in_.empty()) {
      piece_.resize(std::min(kPiece, file_.size() - consumed_));
      file_.read(consumed_, piece_.data(), piece_.size());
      in_ = piece_;
    }
    const size_t room = std::min(bytes - done, kMaxRoom);
    const DecoderStep step = decoder_->decode(in_, out + done, room);
    consumed_ += step.consumed;
    in_.remove_prefix(step.consumed);
    if (step.damage != nullptr)
      throw_data("{}: damaged {} data near byte {} ({}): download or compress the file again",
                 printable(file_.path()), decoder_->format(), consumed_, step.damage);
    done += step.produced;
    produced_ += step.produced;
    if (produced_ > limit_)
      throw_data(
          "{}: decompresses to more than {} bytes, the most for a file of its size (docs/limits.md): split "
          "it, or give it decompressed",
          printable(file_.path()), limit_);
    inside_ = !step.at_end;
    if (inside_ && consumed_ == file_.size() && step.produced < room)
      throw_data("{}: the {} data ends early after {} bytes: download or compress the file again",
                 printable(file_.path()), decoder_->format(), consumed_);
  }
  return done;
}

}  // namespace hyperion::data
