// Decompresses .gz and .zst files, recognized by their first bytes and not by the file's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"

namespace hyperion::data {

bool is_compressed(const InputFile& file);

// The maximum size to which a file of `compressed` bytes may inflate: 64 times its size, but at least 256
// MiB and at most 64 GiB.
uint64_t inflation_limit(uint64_t compressed);

// The text of a compressed file, which may be several gzip members or zstd frames in a row, from its
// beginning on. Needs 256 KiB and the decoder's window: 32 KiB for gzip, for zstd what the frame asks for (2
// MiB if it was compressed at the default level, at most 128 MiB).
class InflatedStream {
 public:
  // `file` must outlive the stream. The text may have `limit` bytes.
  InflatedStream(const InputFile& file, uint64_t limit);
  ~InflatedStream();

  // Copies the next bytes of the text and returns their number, which is smaller than `bytes` only at its
  // end. Throws Error(kBadData) naming the file if the data is damaged, ends early, or is more than `limit`
  // bytes.
  size_t read(char* out, size_t bytes);
  // The number of bytes of the file that the text so far is from.
  uint64_t consumed() const { return consumed_; }

 private:
  struct Decoder;
  struct Gzip;
  struct Zstd;

  const InputFile& file_;
  uint64_t limit_;
  std::unique_ptr<Decoder> decoder_;
  std::string piece_;    // of the file
  std::string_view in_;  // what is left of piece_
  uint64_t consumed_ = 0, produced_ = 0;
  bool inside_ = true;  // of a member or frame
};

}  // namespace hyperion::data
