#include "trainer/data/decompress.h"

#include <algorithm>
#include <memory>

#include <zlib.h>
#include <zstd.h>

#include "base/error.h"

namespace hyperion {
namespace {

// Grows `text` by half where its unused tail is small and returns where that tail begins.
class Output {
 public:
  Output(const std::string& name, size_t compressed, size_t limit) : name_(name), limit_(limit) {
    text_.resize(std::min(limit, std::max<size_t>(compressed * 4, size_t{1} << 16)));
  }
  char* tail() {
    if (used_ == text_.size()) {
      if (used_ >= limit_)
        throw_data("{}: decompresses to more than {} bytes: split it into smaller files", name_, limit_);
      text_.resize(std::min(limit_, used_ + used_ / 2 + 1));
    }
    return text_.data() + used_;
  }
  size_t room() const { return text_.size() - used_; }
  void advance(size_t n) { used_ += n; }
  std::string finish() {
    text_.resize(used_);
    return std::move(text_);
  }

 private:
  const std::string& name_;
  size_t limit_;
  std::string text_;
  size_t used_ = 0;
};

std::string inflate_all(std::span<const std::byte> bytes, const std::string& name, size_t limit) {
  constexpr size_t kPart = size_t{1} << 30;  // zlib counts in 32 bits
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw_bug("zlib could not be initialised for {}", name);
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  Output output(name, bytes.size(), limit);
  size_t done = 0;
  for (bool inside = true; inside || done < bytes.size();) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data() + done));
    const size_t offered_in = std::min(bytes.size() - done, kPart);
    stream.avail_in = static_cast<uInt>(offered_in);
    stream.next_out = reinterpret_cast<Bytef*>(output.tail());
    const size_t offered_out = std::min(output.room(), kPart);
    stream.avail_out = static_cast<uInt>(offered_out);
    const int status = inflate(&stream, Z_NO_FLUSH);
    done += offered_in - stream.avail_in;
    const size_t produced = offered_out - stream.avail_out;
    output.advance(produced);
    if (status == Z_STREAM_END) {
      inside = false;
      if (done < bytes.size()) inflateReset(&stream);  // the next member
    } else if (status == Z_OK || status == Z_BUF_ERROR) {
      inside = true;
      if (done == bytes.size() && produced < offered_out)
        throw_data("{}: the gzip data ends early after {} bytes: download or compress the file again", name,
                   done);
    } else {
      throw_data("{}: damaged gzip data near byte {} ({}): download or compress the file again", name, done,
                 stream.msg != nullptr ? stream.msg : "unknown");
    }
  }
  return output.finish();
}

std::string unzstd_all(std::span<const std::byte> bytes, const std::string& name, size_t limit) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw_bug("zstd could not be initialised for {}", name);
  Output output(name, bytes.size(), limit);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  for (size_t pending = 1; pending != 0 || in.pos < in.size;) {
    char* tail = output.tail();
    ZSTD_outBuffer out{tail, output.room(), 0};
    pending = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(pending)) {
      throw_data("{}: damaged zstd data near byte {} ({}): download or compress the file again", name, in.pos,
                 ZSTD_getErrorName(pending));
    }
    output.advance(out.pos);
    if (pending != 0 && in.pos == in.size && out.pos < out.size)
      throw_data("{}: the zstd data ends early after {} bytes: download or compress the file again", name,
                 in.size);
  }
  return output.finish();
}

// Each fills `out` as far as the data go and returns how many bytes there were.
size_t inflate_begin(std::span<const std::byte> bytes, const std::string& name, std::string& out) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) throw_bug("zlib could not be initialised for {}", name);
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);
  constexpr size_t kPart = size_t{1} << 30;  // zlib counts in 32 bits
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(std::min(bytes.size(), kPart));
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  while (stream.avail_out > 0 && stream.avail_in > 0) {
    const int status = inflate(&stream, Z_NO_FLUSH);
    if (status == Z_STREAM_END)
      inflateReset(&stream);  // the next member
    else if (status != Z_OK)
      throw_data("{}: damaged gzip data near its beginning ({}): download or compress the file again", name,
                 stream.msg != nullptr ? stream.msg : "unknown");
  }
  return out.size() - stream.avail_out;
}

size_t unzstd_begin(std::span<const std::byte> bytes, const std::string& name, std::string& out) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw_bug("zstd could not be initialised for {}", name);
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  while (to.pos < to.size && in.pos < in.size) {
    const size_t pending = ZSTD_decompressStream(stream.get(), &to, &in);
    if (ZSTD_isError(pending))
      throw_data("{}: damaged zstd data near its beginning ({}): download or compress the file again", name,
                 ZSTD_getErrorName(pending));
  }
  return to.pos;
}

}  // namespace

Compression detect_compression(std::span<const std::byte> bytes) {
  const auto at = [&](size_t i) { return i < bytes.size() ? std::to_integer<int>(bytes[i]) : -1; };
  if (at(0) == 0x1f && at(1) == 0x8b) return Compression::kGzip;
  if (at(0) == 0x28 && at(1) == 0xb5 && at(2) == 0x2f && at(3) == 0xfd) return Compression::kZstd;
  return Compression::kNone;
}

std::string decompress(std::span<const std::byte> bytes, Compression compression, const std::string& name,
                       size_t limit) {
  if (compression == Compression::kGzip) return inflate_all(bytes, name, limit);
  if (compression == Compression::kZstd) return unzstd_all(bytes, name, limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string decompress_begin(std::span<const std::byte> bytes, Compression compression,
                             const std::string& name, size_t size) {
  if (compression == Compression::kNone)
    return {reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), size)};
  std::string begin(size, '\0');
  begin.resize(compression == Compression::kGzip ? inflate_begin(bytes, name, begin)
                                                 : unzstd_begin(bytes, name, begin));
  return begin;
}

}  // namespace hyperion
