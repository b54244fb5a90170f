// The field of each document that holds its text.
#pragma once

#include <string>

namespace hyperion::data {

struct TextField {
  std::string name = "text";
  std::string key = "training.text_field";  // the option that sets it, for messages
  std::string default_key{};                // the source of `name` if `key` is not set
};

}  // namespace hyperion::data
