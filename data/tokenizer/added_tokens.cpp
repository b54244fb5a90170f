#include "data/tokenizer/added_tokens.h"

#include "base/utf8.h"
#include "data/tokenizer/unicode_classes.h"

namespace hyperion::data {
namespace {

bool is_space(char32_t c) {
  return char_classes()[c] == CharClass::kSpace;
}

// The start of the white space that ends at `end`, at or after `limit`.
size_t space_begin(std::string_view text, size_t limit, size_t end) {
  while (end > limit) {
    size_t begin = end - 1;
    while (begin > limit && (text[begin] & 0xC0) == 0x80) --begin;
    if (!is_space(decode_at(text, begin).value)) break;
    end = begin;
  }
  return end;
}

size_t space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = decode_at(text, begin);
    if (!is_space(c.value)) break;
    begin += c.size;
  }
  return begin;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [place, is_new] = nodes_[node].next.try_emplace(byte, static_cast<uint32_t>(nodes_.size()));
    node = place->second;
    if (is_new) nodes_.emplace_back();
  }
  starts_[static_cast<uint8_t>(token.content.front())] = true;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view sentence, size_t position) const {
  const AddedToken* match = nullptr;
  const Node* node = &nodes_[0];
  for (size_t i = position; i < sentence.size(); ++i) {
    const auto next = node->next.find(sentence[i]);
    if (next == node->next.end()) break;
    node = &nodes_[next->second];
    if (node->token >= 0) match = &tokens_[static_cast<size_t>(node->token)];
  }
  return match;
}

void AddedTokenFinder::split(std::string_view sentence, const std::function<void(std::string_view)>& text,
                             const std::function<void(int32_t)>& token) const {
  size_t done = 0;  // everything before it has been emitted
  for (size_t i = 0; i < sentence.size();) {
    const AddedToken* match = starts_[static_cast<uint8_t>(sentence[i])] ? longest_at(sentence, i) : nullptr;
    if (match == nullptr) {
      ++i;
      continue;
    }
    size_t begin = i, end = i += match->content.size();
    if (match->lstrip) begin = done < begin ? space_begin(sentence, done, begin) : done;
    if (match->rstrip) end = space_end(sentence, end);
    if (done < begin) text(sentence.substr(done, begin - done));
    token(match->id);
    done = end;
  }
  if (done < sentence.size()) text(sentence.substr(done));
}

}  // namespace hyperion::data
