// Documents of a corpus by their place in the order of (seed, epoch), tokenised.
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

// The next token to come. `file` and `document` count in the epoch's order, not the corpus's, so the position
// is meaningful with the same seed and data only.
struct StreamPosition {
  uint64_t epoch = 0;
  uint64_t file = 0;
  uint64_t document = 0;
  uint64_t token = 0;

  // To the begin of the next document. `documents`: of this file; `files`: of the corpus.
  void next_document(uint64_t documents, uint64_t files);
  bool operator==(const StreamPosition&) const = default;
};

// A document that is open.
struct DocumentInfo {
  uint64_t file = 0;       // index in the corpus's list
  uint64_t documents = 0;  // of that file
  uint64_t line = 0;       // see DocumentSource::line()
  uint64_t length = 0;     // tokens
};

// One file and one document of it are open at a time. Not for use by two threads at once.
class CorpusReader {
 public:
  CorpusReader(std::vector<CorpusFile> files, Encode encode, bool shuffle, TextField field = {});

  // Of the file of `position`, which is opened.
  uint64_t documents(const StreamPosition& position, uint64_t seed);
  // Makes the document of `position` the open one. Throws Error(kBadData).
  DocumentInfo open(const StreamPosition& position, uint64_t seed);
  // Tokens [offset, offset + out.size()) of the open document.
  void copy(uint64_t offset, std::span<int64_t> out) const { source_->copy(offset, out); }

  const std::vector<CorpusFile>& files() const { return files_; }

 private:
  std::vector<CorpusFile> files_;
  Encode encode_;
  bool shuffle_;
  TextField field_;
  std::unique_ptr<DocumentSource> source_;
  std::optional<size_t> file_;        // index in files_ of source_
  std::optional<uint64_t> document_;  // index in source_ of the open document
  uint64_t length_ = 0;               // of the open document
};

}  // namespace hyperion::data
