// Tokens that are found in the text as they are written, before it is split into words: special tokens and
// others that were added to a vocabulary.
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
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // takes the white space behind it
  bool normalized = false;  // is looked for in the normalised text
};

// Finds the leftmost, of those the longest token, over and over.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token);

  // Calls text(view) for what lies between tokens (not empty) and token(id) for each token, in order.
  void split(std::string_view sentence, const std::function<void(std::string_view)>& text,
             const std::function<void(int32_t)>& token) const;

 private:
  struct Node {  // of a trie over bytes
    std::map<char, uint32_t> next;
    int32_t token = -1;  // index into tokens_
  };
  const AddedToken* longest_at(std::string_view sentence, size_t position) const;  // null: none

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};  // bytes that some token starts with
};

}  // namespace hyperion::data
