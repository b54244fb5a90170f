// Added tokens are matched in the text literally, before it is split into words: special tokens and others
// that were added to a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::data {

struct AddedToken {
  std::string content;
  int32_t id;
  bool lstrip = false;      // includes the white space before it
  bool rstrip = false;      // includes the white space after it
  bool normalized = false;  // is matched in the normalized text
};

// Finds the leftmost longest token, repeatedly.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token);

  // Calls text(view) for each non-empty gap between tokens and token(id) for each token, in order.
  void split(std::string_view sentence, const std::function<void(std::string_view)>& text,
             const std::function<void(int32_t)>& token) const;

 private:
  struct Node {  // a node of a trie over bytes
    std::map<char, uint32_t> next;
    int32_t token = -1;  // index into tokens_
  };
  const AddedToken* longest_at(std::string_view sentence, size_t position) const;  // null: none

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};  // first bytes of tokens
};

}  // namespace hyperion::data
