// A CorpusReader opens tokenized documents of a corpus by their position in the order of (seed, epoch).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/document_order.h"
#include "data/sources.h"

namespace hyperion::data {

// The position of the next token. `file` and `document` count in the epoch's order, not the corpus's, so
// the position is meaningful only with the same seed and data.
struct StreamPosition {
  uint64_t epoch = 0;
  uint64_t file = 0;
  uint64_t document = 0;
  uint64_t token = 0;

  // Moves to the start of the next document. `documents` is the number in this file, `files` the number in
  // the corpus.
  void next_document(uint64_t documents, uint64_t files);
  bool operator==(const StreamPosition&) const = default;
};

// An open document.
struct DocumentInfo {
  uint64_t file = 0;       // index in the corpus's list
  uint64_t documents = 0;  // number of documents in that file
  uint64_t line = 0;       // see BlockFile::location()
  uint64_t length = 0;     // in tokens
};

// Keeps one file and one of its documents open. Not thread-safe.
class CorpusReader {
 public:
  CorpusReader(std::vector<CorpusFile> files, Encode encode, bool shuffle, TextField field = {});

  // Opens the file of `position` and returns its number of documents.
  uint64_t documents(const StreamPosition& position, uint64_t seed);
  // Opens the document of `position`. Throws Error(kBadData).
  DocumentInfo open(const StreamPosition& position, uint64_t seed);
  // Copies tokens [offset, offset + out.size()) of the open document.
  void copy(uint64_t offset, std::span<int64_t> out) const { source_->copy(offset, out); }

  const std::vector<CorpusFile>& files() const { return files_; }

 private:
  std::vector<CorpusFile> files_;
  Encode encode_;
  bool shuffle_;
  TextField field_;
  std::unique_ptr<DocumentSource> source_;
  uint64_t documents_ = 0;            // in source_
  std::optional<size_t> file_;        // index in files_ of source_
  std::optional<uint64_t> document_;  // index in source_ of the open document
  uint64_t length_ = 0;               // length of the open document, in tokens
};

}  // namespace hyperion::data
