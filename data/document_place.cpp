#include "data/document_place.h"

#include <fmt/format.h>

#include "data/sources.h"

namespace hyperion::data {

std::string DocumentPlace::describe() const {
  return file == nullptr ? "padding" : fmt::format("{}:{}", file->path.string(), location);
}

std::string PlaceRange::describe() const {
  return first == last ? first.describe() : first.describe() + ".." + last.describe();
}

std::string describe(std::span<const PlaceRange> ranges) {
  std::string text;
  for (const PlaceRange& range : ranges) text += (text.empty() ? "" : ", ") + range.describe();
  return text;
}

}  // namespace hyperion::data
