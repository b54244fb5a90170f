#include "data/corpus_reader.h"

#include "base/error.h"

namespace hyperion::data {

void StreamPosition::next_document(uint64_t documents, uint64_t files) {
  token = 0;
  if (++document < documents) return;
  document = 0;
  if (++file < files) return;
  file = 0;
  ++epoch;
}

CorpusReader::CorpusReader(std::vector<CorpusFile> files, Encode encode, bool shuffle, TextField field)
    : files_(std::move(files)), encode_(std::move(encode)), shuffle_(shuffle), field_(std::move(field)) {}

uint64_t CorpusReader::documents(const StreamPosition& position, uint64_t seed) {
  if (position.file >= files_.size())
    throw_data("data position: file {} of {} files: the data changed since it was saved", position.file,
               files_.size());
  const size_t index = file_order(files_.size(), seed, position.epoch, shuffle_)(position.file);
  if (file_ != index) {
    source_.reset();  // never hold two decompressed files in memory
    document_.reset();
    file_.reset();
    source_ = open_source(files_[index], encode_, field_);
    file_ = index;
    documents_ = source_->open_block(0).value();
  }
  return documents_;
}

DocumentInfo CorpusReader::open(const StreamPosition& position, uint64_t seed) {
  const uint64_t count = documents(position, seed);
  if (position.document >= count) {
    throw_data(
        "data position: document {} of {}, which has {} documents: the data changed since it was saved",
        position.document, files_[*file_].path.string(), count);
  }
  const uint64_t chosen =
      document_order(count, static_cast<uint32_t>(*file_), seed, position.epoch, shuffle_)(position.document);
  if (document_ != chosen) {
    document_.reset();
    length_ = source_->open(chosen);
    document_ = chosen;
  }
  return {*file_, count, source_->location(chosen), length_};
}

}  // namespace hyperion::data
