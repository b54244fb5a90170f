#include "data/tokenizer/vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/byte_level.h"

namespace hyperion::data {

void TokenizerSpec::add_model_token(const std::string& name, const std::string& bytes, bool is_word,
                                    int64_t id, const std::string& where) {
  if (id < 0 || id > kMaxTokenId)
    throw_data("{}: token {:?} has id {}, expected 0 to {}", where, name, id, kMaxTokenId);
  if (bytes.empty()) throw_data("{}: the token with id {} is empty", where, id);
  const auto index = static_cast<size_t>(id);
  if (index >= bytes_by_id.size()) bytes_by_id.resize(index + 1);
  if (!bytes_by_id[index].empty())
    throw_data("{}: id {} is given twice, the second time to {:?}", where, id, name);
  const auto token = static_cast<int32_t>(id);
  if (!vocabulary.emplace(name, token).second) throw_data("{}: token {:?} is there twice", where, name);
  bytes_by_id[index] = bytes;
  if (is_word) words.emplace(bytes, token);
  ++model_size_;
}

void TokenizerSpec::add_added_token(AddedToken token, int64_t id, const std::string& where) {
  if (token.content.empty()) return;  // ignored by Hugging Face too
  if (token.content.size() > kMaxAddedTokenBytes)
    throw_data("{}: an added token has {} bytes, at most {} are accepted", where, token.content.size(),
               kMaxAddedTokenBytes);
  const auto same = std::ranges::find(added, token.content, &AddedToken::content);
  int64_t expected = model_size_;
  if (const auto known = vocabulary.find(token.content); known != vocabulary.end()) {
    expected = known->second;
  } else if (same != added.end()) {
    expected = same->id;
  } else {
    for (const AddedToken& other : added) expected = std::max(expected, int64_t{other.id} + 1);
  }
  if (id >= 0 && id != expected)
    throw_data(
        "{}: added token {:?} has id {}, expected {}: its id in the vocabulary, or else the next one that is "
        "free",
        where, token.content, id, expected);
  if (added.size() == kMaxAddedTokens) throw_data("{}: more than {} added tokens", where, kMaxAddedTokens);
  const auto index = static_cast<size_t>(expected);
  if (index > static_cast<size_t>(kMaxTokenId)) throw_data("{}: more than {} tokens", where, kMaxTokenId);
  if (index >= bytes_by_id.size()) bytes_by_id.resize(index + 1);
  token.id = static_cast<int32_t>(expected);
  if (same != added.end()) {
    *same = std::move(token);
    return;
  }
  if (std::ranges::find(added, token.id, &AddedToken::id) != added.end() ||
      (!vocabulary.contains(token.content) && !bytes_by_id[index].empty()))
    throw_data("{}: added token {:?} has id {}, which another token has", where, token.content, expected);
  bytes_by_id[index] = bytes_of_token(token.content).value_or(token.content);
  added.push_back(std::move(token));
}

}  // namespace hyperion::data
