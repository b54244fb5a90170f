// A file of documents is read in blocks, each of which is opened as a whole and holds documents in any order.
// One class per file format implements TextFile (text, which is encoded while it is read) or
// DocumentSource (tokens).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"

namespace hyperion::data {

// A document that cannot be read although the rest of its file can: without the field, no string, too long.
class BadDocument : public Error {
 public:
  explicit BadDocument(const std::string& message) : Error(ExitCode::kBadData, message) {}
};

// The blocks of a file. The same file always has the same blocks. Not thread-safe.
class BlockFile {
 public:
  virtual ~BlockFile() = default;

  // The number of blocks, which may be opened in any order. nullopt if it is not known: blocks are opened in
  // ascending order then, and one before the current block reads the file from its beginning again.
  virtual std::optional<uint64_t> blocks() const { return 1; }
  // Makes a block the current one and returns the number of its documents, which may be 0; nullopt if the
  // file ends before this block. Throws Error(kBadData) naming the file.
  virtual std::optional<uint64_t> open_block(uint64_t block) = 0;
  // Bytes on disk behind the current block. For files whose number of blocks is not known.
  virtual uint64_t bytes_after_block() const { return 0; }
  // The place of a document of the current block in the file, for describe_location(): its line, row or
  // number, counted from 1.
  virtual uint64_t location(uint64_t document) const = 0;
};

// Returns the size of the fewest equal parts of `total`, of at most `most` each, rounded up: blocks that hold
// about as many documents each tell how many there are in all (CorpusReader). At least 1.
constexpr uint64_t equal_part(uint64_t total, uint64_t most) {
  const uint64_t parts = (total + most - 1) / most;
  return parts == 0 ? most : (total + parts - 1) / parts;
}

// A file of texts.
class TextFile : public BlockFile {
 public:
  // The text of a document of the current block, valid until the next call; "" for a null. Throws BadDocument
  // or Error(kBadData) naming file:location.
  virtual std::string_view text(uint64_t document) = 0;
};

// A file of documents in tokens.
class DocumentSource : public BlockFile {
 public:
  // Makes a document of the current block the current one and returns its length in tokens, which may be 0.
  // Throws BadDocument or Error(kBadData) naming file:location.
  virtual uint64_t open(uint64_t document) = 0;
  // Copies tokens [offset, offset + out.size()) of the current document.
  virtual void copy(uint64_t offset, std::span<int64_t> out) const = 0;
};

}  // namespace hyperion::data
