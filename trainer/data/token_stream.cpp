#include "trainer/data/token_stream.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace hyperion::trainer {

TokenStream::TokenStream(std::vector<CorpusFile> files, Encode encode, const StreamOptions& options,
                         TextField field)
    : files_(std::move(files)), encode_(std::move(encode)), options_(options), field_(std::move(field)) {}

void TokenStream::open_document() {
  const auto [epoch, file, document, token] = position_;
  if (file >= files_.size())
    throw_data("data position: file {} of {} files: the data changed since it was saved", file,
               files_.size());
  const size_t index = file_order(files_.size(), options_.seed, epoch, options_.shuffle)(file);
  if (file_ != index) {
    source_.reset();  // so that two decompressed files are never in memory at once
    document_.reset();
    file_.reset();
    source_ = open_source(files_[index], encode_, field_);
    file_ = index;
  }
  if (document >= source_->documents()) {
    throw_data(
        "data position: document {} of {}, which has {} documents: the data changed since it was saved",
        document, files_[index].path.string(), source_->documents());
  }
  const uint64_t chosen = document_order(source_->documents(), static_cast<uint32_t>(index), options_.seed,
                                         epoch, options_.shuffle)(document);
  if (document_ != chosen) {
    document_.reset();
    length_ = source_->open(chosen);
    document_ = chosen;
  }
  open_ = true;
}

bool TokenStream::advance_to_token() {
  const uint64_t first_epoch = position_.epoch;
  while (options_.repeat || position_.epoch == 0) {
    if (!open_) open_document();
    if (position_.token < length_) return true;
    if (position_.token > length_) {
      throw_data(
          "data position: token {} of {}, which has {} tokens: the data or the tokenizer changed since it "
          "was saved",
          position_.token, describe_position(), length_);
    }
    open_ = false;
    position_.token = 0;
    if (++position_.document < source_->documents()) continue;
    position_.document = 0;
    if (++position_.file < files_.size()) continue;
    position_.file = 0;
    if (++position_.epoch > first_epoch + 1)
      throw_data("dataset {} ({} files): its documents hold no tokens", files_[0].path.string(),
                 files_.size());
  }
  return false;
}

StreamPosition TokenStream::position() {
  advance_to_token();
  return position_;
}

void TokenStream::seek(const StreamPosition& position, uint64_t seed) {
  options_.seed = seed;
  position_ = position;
  open_ = false;
  advance_to_token();
}

bool TokenStream::has_tokens(size_t count) {
  if (!advance_to_token()) return count == 0;
  if (options_.repeat || length_ - position_.token >= count) return true;
  const StreamPosition before = position_;
  const bool enough = skip(count) == count;
  seek(before, options_.seed);
  return enough;
}

template <typename Take>
size_t TokenStream::consume(size_t count, const Take& take) {
  size_t done = 0;
  while (done < count && advance_to_token()) {
    const size_t part = std::min<uint64_t>(count - done, length_ - position_.token);
    take(done, part);
    position_.token += part;
    done += part;
  }
  return done;
}

size_t TokenStream::read_window(std::span<int64_t> out, std::vector<DocumentSpan>& spans) {
  const size_t inputs = out.size() - 1;
  const size_t count = consume(inputs, [&](size_t begin, size_t part) {
    spans.push_back({begin, describe_position()});
    source_->copy(position_.token, out.subspan(begin, part));
  });
  if (count < inputs || !advance_to_token()) return count;
  if (position_.token == 0) spans.push_back({inputs, describe_position()});
  source_->copy(position_.token, out.last(1));
  return out.size();
}

size_t TokenStream::skip(size_t count) {
  return consume(count, [](size_t, size_t) {});
}

std::string TokenStream::describe_position() {
  if (!document_) return "the end of the data";
  return fmt::format("{}:{}", files_[*file_].path.string(), source_->line(*document_));
}

}  // namespace hyperion::trainer
