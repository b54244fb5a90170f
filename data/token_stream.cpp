#include "data/token_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace hyperion::data {

bool TokenStream::open_next() {
  if (node_ != nullptr) {
    TokenisedDocument next = node_->next();
    tokens_ = std::move(next.tokens);
    document_ = next.info;
    position_.move_to(next.drawn, reader_.slots());
    if (!std::exchange(served_again_, false)) skipped_.count(document_->length, next.bad);
  } else {
    if (finished_) {
      const std::optional<DrawnDocument> drawn = reader_.draw(/*one_epoch=*/!options_.repeat);
      if (!drawn) {
        position_ = {.epoch = position_.epoch + 1, .draws = 0, .slot = 0, .token = 0, .slots = {}};
        document_.reset();
        return false;
      }
      position_.move_to(*drawn, reader_.slots());
    }
    document_ = reader_.open();
    skipped_.count(document_->length, reader_.bad());
  }
  open_ = true;
  finished_ = false;
  return true;
}

void TokenStream::share(NodeDocuments& node, uint64_t tokens_ahead) {
  position();  // the open document may be at its end
  served_again_ = std::exchange(open_, false);
  node.start(reader_, position_, options_.seed, tokens_ahead);
  node_ = &node;
}

void TokenStream::copy_tokens(uint64_t offset, std::span<int64_t> out) const {
  if (node_ == nullptr) return reader_.copy(offset, out);
  std::copy_n(tokens_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
}

bool TokenStream::advance_to_token() {
  const uint64_t first_epoch = position_.epoch;
  while (options_.repeat || position_.epoch == 0) {
    if (!open_ && !open_next()) return false;
    if (position_.token < document_->length) return true;
    if (position_.token > document_->length) {
      throw_data(
          "data position: token {} of {}, which has {} tokens: the data or the tokenizer changed since it "
          "was saved",
          position_.token, place().describe(), document_->length);
    }
    open_ = false;
    finished_ = true;
    if (position_.epoch > first_epoch + 1)
      throw_data("dataset {} ({} files): its documents hold no tokens", files()[0].path.string(),
                 files().size());
  }
  return false;
}

StreamPosition TokenStream::position() {
  advance_to_token();
  return position_;
}

void TokenStream::seek(const StreamPosition& position, uint64_t seed) {
  options_.seed = seed;
  if (node_ != nullptr) node_->stop();
  node_ = nullptr;
  position_ = position;
  open_ = false;
  finished_ = position.draws == 0;
  skipped_ = {};
  served_again_ = false;
  reader_.seek(position, seed);
  advance_to_token();
}

template <typename Take>
size_t TokenStream::consume(size_t count, const Take& take) {
  size_t done = 0;
  while (done < count && advance_to_token()) {
    const size_t part = std::min<uint64_t>(count - done, document_->length - position_.token);
    take(done, part);
    position_.token += part;
    done += part;
  }
  return done;
}

size_t TokenStream::read_window(std::span<int64_t> out, std::vector<DocumentSpan>& spans) {
  const size_t inputs = out.size() - 1;
  const size_t count = consume(inputs, [&](size_t begin, size_t part) {
    spans.push_back({begin, place(), position_.token});
    copy_tokens(position_.token, out.subspan(begin, part));
  });
  if (count < inputs || !advance_to_token()) return count;
  if (position_.token == 0) spans.push_back({inputs, place(), 0});
  copy_tokens(position_.token, out.last(1));
  return out.size();
}

size_t TokenStream::skip(size_t count) {
  return consume(count, [](size_t, size_t) {});
}

DocumentPlace TokenStream::place() const {
  if (!document_) return {};
  return {&files()[document_->file], document_->location};
}

}  // namespace hyperion::data
