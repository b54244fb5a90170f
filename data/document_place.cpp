#include "data/document_place.h"

#include "data/line_file.h"
#include "data/sources.h"

namespace hyperion::data {

std::string DocumentPlace::describe() const {
  return file == nullptr ? "padding" : describe_location(file->path, location);
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
