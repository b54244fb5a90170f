#include "base/device/error_text.h"

#include <c10/util/Exception.h>

#include "base/standard_streams.h"

namespace hyperion {

std::string brief(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  // Nested exceptions carry frames in their text.
  std::string text = without_stack_frames(torch ? torch->what_without_backtrace() : error.what());
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace hyperion
