// The field of each document that holds its text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hyperion::data {

struct TextField {
  std::string name = "text";
  std::string key = "training.text_field";  // the option that sets it, for messages
  std::string default_key{};                // the source of `name` if `key` is not set

  std::string chosen_by() const { return default_key.empty() ? key : key + ", by default " + default_key; }
};

// The ways to read a name as a field and, after a dot, a name in it: first the field itself with an empty
// rest, so that a field whose own name holds a dot is found, then the longest names ("a.b.c": "a.b", "c" and
// "a", "b.c").
inline std::vector<std::pair<std::string_view, std::string_view>> paths_of(std::string_view name) {
  std::vector<std::pair<std::string_view, std::string_view>> paths = {{name, {}}};
  for (size_t dot = name.rfind('.'); dot != name.npos && dot > 0; dot = name.rfind('.', dot - 1))
    if (dot + 1 < name.size()) paths.emplace_back(name.substr(0, dot), name.substr(dot + 1));
  return paths;
}

// TextBlocks says how a file of text is cut into blocks.
enum class TextBlocks {
  kWhole,      // one block
  kStretches,  // about 1 MiB of text each
  kSample,     // small stretches, for a look at the first documents
};

}  // namespace hyperion::data
